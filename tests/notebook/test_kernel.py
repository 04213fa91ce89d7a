"""The kernel as a separate process, tested through Jupyter's messages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import jupyter_kernel_test  # type: ignore[import-untyped]
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

import danlu
from danlu.notebook.kernelspec import environment_base, install_kernel
from tests.notebook.conftest import JupyterEnv
from tests.notebook.kernels import run_alone, run_and_read_stdout, running

pytestmark = pytest.mark.notebook


@contextmanager
def start_danlu_kernel(
    tmp: Path, patch: pytest.MonkeyPatch, **options: Any
) -> Iterator[BlockingKernelClient]:
    install_kernel(environment_base(run_alone(tmp, patch)))
    with running("danlu", **options) as client:
        yield client


class TestConformance(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """Jupyter's own tests of a kernel's messages, with samples for all of them."""

    patch: ClassVar[pytest.MonkeyPatch]
    place: ClassVar[tempfile.TemporaryDirectory[str]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.patch, cls.place = pytest.MonkeyPatch(), tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        cls.addClassCleanup(cls.patch.undo)
        install_kernel(environment_base(run_alone(Path(cls.place.name), cls.patch)))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        cls.km.cleanup_resources()

    kernel_name = "danlu"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [
        {"text": "import warnings; warnings.warn_expl", "matches": {"warn_explicit"}},
        {"text": "zi", "matches": {"zip"}},
    ]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('no')"
    code_execute_result = [{"code": "1 + 2 + 3", "result": "6"}, {"code": "[1]", "result": "[1]"}]
    code_display_data = [
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))",
            "mime": "text/html",
        },
        {
            "code": "from IPython.display import Math, display; display(Math('x^2'))",
            "mime": "text/latex",
        },
    ]
    code_history_pattern = "1 +*"
    # "range" gives the present session's number as 0, in ipykernel's own kernel too.
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


def test_kernel_info_names_danlu_and_supports_debugging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_danlu_kernel(tmp_path, monkeypatch) as client:
        content = client.kernel_info(reply=True, timeout=60)["content"]
    assert content["implementation"] == "danlu"
    assert content["implementation_version"] == danlu.__version__
    assert content["language_info"]["pygments_lexer"] == "ipython3"
    assert content["language_info"]["version"] == sys.version.split()[0]
    assert "debugger" in content["supported_features"]


def test_magics_are_preloaded_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_danlu_kernel(tmp_path, monkeypatch) as client:
        cells = run_and_read_stdout(client, "print(*get_ipython().magics_manager.magics['cell'])")
    assert "distributed" in cells.split()


def test_module_next_to_the_notebook_does_not_shadow_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    for name in ("random", "zmq", "ipykernel"):
        (directory / f"{name}.py").write_text("raise SystemExit('taken for the library')\n")
    (directory / "mine.py").write_text("value = 'found'\n")
    with start_danlu_kernel(tmp_path, monkeypatch, cwd=str(directory)) as client:
        assert run_and_read_stdout(
            client, "import random, mine; print(random.random() < 1, mine.value)"
        ) == ("True found")


def test_functions_of_main_can_be_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import pickle\ndef f(): return 7\nprint(pickle.loads(pickle.dumps(f))(), __name__)"
    with start_danlu_kernel(tmp_path, monkeypatch) as client:
        assert run_and_read_stdout(client, code) == "7 __main__"


def test_jupyter_finds_the_kernelspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.kernelspec import KernelSpecManager

    install_kernel(environment_base(run_alone(tmp_path, monkeypatch)))
    kernel_spec = KernelSpecManager().get_kernel_spec("danlu")
    assert kernel_spec.display_name == "danlu"
    assert kernel_spec.argv[0] == sys.executable
    assert kernel_spec.metadata == {"debugger": True, "supported_encryption": ["curve"]}
    output = json.loads((Path(kernel_spec.resource_dir) / "kernel.json").read_text())
    assert output["kernel_protocol_version"] == "5.5"


def test_oldest_supported_ipykernel_runs_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jupyter_env: JupyterEnv
) -> None:
    env = jupyter_env("oldest", ("danlu[notebook]", "ipykernel==6.29.*"))
    prefix = run_alone(tmp_path, monkeypatch)
    command = [str(env / "bin/danlu"), "kernel", "install", "--prefix", str(prefix)]
    subprocess.run(command, check=True, capture_output=True)
    cell = "%%distributed --framework pytorch --worker 1 --return rank\nimport os\nrank = "
    with running("danlu") as client:
        assert run_and_read_stdout(
            client, "import ipykernel; print(ipykernel.__version__)"
        ).startswith("6.29.")
        run_and_read_stdout(client, cell + "os.environ['RANK']")
        assert run_and_read_stdout(client, "print(rank)") == "0"
