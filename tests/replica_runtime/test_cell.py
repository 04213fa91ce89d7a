"""A cell runs on a replica like a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.notebook.variables import unpack_results
from tests.replica_runtime.bundles import run, write_cell_bundle


def test_code_runs_as_main_with_the_sent_variables(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "print(__name__, x + 1)\n", variables={"x": 41})
    result = run(bundle)
    assert (result.code, result.out, result.err) == (0, "__main__ 42\n", "")


def test_code_is_sent_byte_for_byte(notebook: Path) -> None:
    code = "\n\n# ä\r\ntext = '''a\n\n  %x=1\n'''\n\tif_ = 1" + "\n" * 3
    code = code.replace("\tif_", "if_")
    bundle = write_cell_bundle(notebook, code)
    assert (bundle.directory / "cell" / "cell.py").read_bytes() == code.encode()


def test_coding_line_is_ignored(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, "# -*- coding: latin-1 -*-\nprint(len('ä'))\n"))
    assert result.out == "1\n"


def test_arguments_become_variables_with_literal_values(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "print([lr, kind, deep_er, empty])\n")
    result = run(bundle, "--lr", "1e-3", "--kind", "adam", "--deep-er=[1, 2]", "--empty", "")
    assert result.out == "[0.001, 'adam', [1, 2], '']\n"


def test_invalid_variable_name_of_an_option_is_an_error(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, "print('never')\n"), "--lambda", "1")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("danlu: --lambda is not a valid variable name\nhint: ")


def test_inspect_finds_the_source_of_functions_and_classes(notebook: Path) -> None:
    code = (
        "\nimport inspect\n\ndef f():\n    return 1\n\nclass C:\n    x = 2\n\n"
        "print(inspect.getsource(f) + inspect.getsource(C), end='')\n"
    )
    assert (
        run(write_cell_bundle(notebook, code)).out
        == "def f():\n    return 1\nclass C:\n    x = 2\n"
    )


SPAWNING = """
import dataclasses
import multiprocessing

@dataclasses.dataclass
class Task:
    number: int

def work(task):
    return task.number * x + lr, __name__

if __name__ == "__main__":
    with multiprocessing.get_context(KIND).Pool(2) as pool:
        found = pool.map(work, [Task(1), Task(2)])
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [("fork", "__main__"), ("spawn", "__mp_main__"), ("forkserver", "__mp_main__")],
)
def test_multiprocessing_children_have_the_same_main(notebook: Path, kind: str, name: str) -> None:
    variables = {"x": 10, "KIND": kind}
    bundle = write_cell_bundle(
        notebook, SPAWNING, variables=variables, returns=("found",), sweep=("lr=1",)
    )
    result = run(bundle, "--lr", "0.5")
    assert result.code == 0, result.err
    assert unpack_results(result.result(), ["found"]) == {"found": [(10.5, name), (20.5, name)]}


def test_nested_multiprocessing_children_have_the_same_main(notebook: Path) -> None:
    code = """
import multiprocessing

def deepest(queue):
    queue.put((x, __name__))

def middle(queue):
    process = multiprocessing.get_context("spawn").Process(target=deepest, args=(queue,))
    process.start()
    process.join()

if __name__ == "__main__":
    queue = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=middle, args=(queue,))
    process.start()
    print(*queue.get(timeout=60))
    process.join()
"""
    assert run(write_cell_bundle(notebook, code, variables={"x": 7})).out == "7 __mp_main__\n"


def test_cell_started_by_another_cell_finds_its_own_main(notebook: Path) -> None:
    outer = write_cell_bundle(notebook, "raise SystemExit('outer')\n", target="outer").directory
    bundle = write_cell_bundle(notebook, SPAWNING, variables={"x": 1, "lr": 2, "KIND": "spawn"})
    environ = {
        "PYTHONPATH": str(outer / "spawned_main"),
        "DANLU_CELL": str(outer),
        "DANLU_CELL_ARGUMENTS": '["--x", "5"]',
    }
    result = run(bundle, environ=environ)
    assert (result.code, result.err) == (0, "")


def test_relaunched_program_runs_the_cell_but_returns_once(
    notebook: Path,
) -> None:
    # As Lightning does for the further processes of one machine; here after the first has given.
    code = """
import atexit, os, subprocess, sys
import __main__
child = os.environ.get("CHILD", "")
if not child:
    words = [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    environ = {**os.environ, "CHILD": "1"}
    atexit.register(lambda: subprocess.run(words, check=True, env=environ))
value = x, lr, child
print(*value, flush=True)
"""
    bundle = write_cell_bundle(
        notebook, code, variables={"x": 1}, returns=("value",), sweep=("lr=1",)
    )
    result = run(bundle, "--lr", "2")
    assert (result.err, result.out) == ("", "1 2 \n1 2 1\n")
    assert unpack_results(result.result(), ["value"]) == {"value": (1, 2, "")}


def test_only_local_rank_0_returns_variables(notebook: Path) -> None:
    bundle = write_cell_bundle(
        notebook, "import os\nrank = os.environ['LOCAL_RANK']\n", returns=("rank",)
    )
    assert run(bundle, environ={"LOCAL_RANK": "1"}).value is None
    assert unpack_results(run(bundle, environ={"LOCAL_RANK": "0"}).result(), ["rank"]) == {
        "rank": "0"
    }


def test_first_failure_of_a_launchers_processes_is_kept(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "import os\nraise OSError(os.environ['LOCAL_RANK'])\n")
    assert run(bundle, environ={"LOCAL_RANK": "1"}).raised["message"] == "1"
    assert run(bundle, environ={"LOCAL_RANK": "0"}).raised["message"] == "1"
    again = {"LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert run(bundle, environ=again).raised["message"] == "0"


def test_danlu_report_works_without_danlu_installed(notebook: Path) -> None:
    bundle = write_cell_bundle(
        notebook, "import danlu\ndanlu.report(loss=1)\nprint(danlu.__file__)\n"
    )
    # Without site-packages nothing is installed.
    words = [sys.executable, "-S", "-E", str(bundle.directory / "run.py")]
    result = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, cwd=notebook
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{bundle.directory / 'fallback' / 'danlu.py'}\n"


def test_installed_danlu_is_preferred(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, "import danlu\nprint(danlu.__file__)\n"))
    assert Path(result.out.strip()).name == "__init__.py"


def test_working_directory_does_not_shadow_the_standard_library(notebook: Path) -> None:
    results = notebook.with_name("sent-results")
    results.mkdir()
    (results / "colorsys.py").write_text("raise SystemExit(9)\n")
    (results / "beside.py").write_text("name = 'beside'\n")
    result = run(write_cell_bundle(notebook, "import colorsys, beside\nprint(beside.name)\n"))
    assert (result.code, result.out) == (0, "beside\n")
