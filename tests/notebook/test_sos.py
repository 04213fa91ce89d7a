"""The kernel in a SoS notebook, beside SoS's own and Python's, with values passed between them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.notebook.conftest import JupyterEnv
from tests.notebook.kernels import alone, run, running, shown

pytestmark = pytest.mark.notebook

#: What SoS is, with its module for Python; numpy and pandas come with it.
SOS = ("danlu[notebook]", "sos-notebook", "sos-python")


def offer(prefix: Path, env: Path, *command: str) -> None:
    """Have a program of ``env`` install a kernel below ``prefix``."""
    arguments = [str(env / "bin/python"), "-m", *command, "--prefix", str(prefix)]
    subprocess.run(arguments, check=True, capture_output=True)


def start(client: BlockingKernelClient, *magics: str) -> None:
    """Have SoS start kernels by ``%use …``, and come back to its own.

    SoS sends a kernel its first cell while it is still subscribing to what that puts out, and may
    miss some: so each is asked until it is heard.
    """
    for magic in magics:
        heard = (shown(client, f"{magic}\nprint('heard')") for _ in range(20))
        assert "heard" in heard
    shown(client, "%use SoS")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A prefix for kernels, and a home of its own for SoS, which keeps logs and settings there."""
    with pytest.MonkeyPatch.context() as patch:
        prefix = alone(tmp_path_factory.mktemp("sos"), patch)
        patch.setenv("HOME", str(prefix.parent))
        yield prefix


@pytest.fixture(scope="module")
def sos(place: Path, jupyter_env: JupyterEnv) -> Iterator[BlockingKernelClient]:
    """SoS's kernel; the kernel danlu is of the same environment."""
    env = jupyter_env("sos", SOS)
    offer(place, env, "sos_notebook.install")
    offer(place, env, "danlu", "kernel", "install")
    with running("sos", cwd=str(place.parent)) as client:
        start(client, "%use Danlu", "%use Python3")
        yield client


@pytest.mark.parametrize(
    ("value", "compared"),
    [
        ("{'lr': 0.1, 'names': ['a', 'b']}", "value == {'lr': 0.1, 'names': ['a', 'b']}"),
        ("b'\\x00\\xff' * 40000", "value == b'\\x00\\xff' * 40000"),
        ("'炉\\n\\'\"'", "value == '炉\\n\\'\"'"),
        (
            "__import__('numpy').arange(6).reshape(2, 3)",
            "value.sum() == 15 and value.shape[0] == 2",
        ),
        (
            "__import__('pandas').DataFrame({'a': [1, 2], 'b': ['x', 'y']})",
            "value.a.sum() == 3 and list(value.b) == ['x', 'y']",
        ),
    ],
    ids=["plain", "bytes", "text", "array", "frame"],
)
def test_a_value_goes_to_the_kernel_and_comes_back(
    sos: BlockingKernelClient, value: str, compared: str
) -> None:
    shown(sos, f"%use SoS\nvalue = {value}")
    assert shown(sos, f"%use Danlu\n%get value\nprint({compared})") == "True"
    shown(sos, "%put back\nback = value")
    assert shown(sos, f"%use SoS\nprint(({compared}) and {compared.replace('value', 'back')})") == (
        "True"
    )


def test_a_value_goes_to_pythons_kernel_and_from_it(sos: BlockingKernelClient) -> None:
    shown(sos, "%use Danlu\nlosses = [0.5, 0.25]")
    assert shown(sos, "%use Python3\n%get losses --from Danlu\nprint(losses)") == "[0.5, 0.25]"
    shown(sos, "rate = losses[1] / 5")
    assert shown(sos, "%use Danlu\n%get rate --from Python3\nprint(rate)") == "0.05"


def test_a_value_may_have_another_name_on_the_other_side(sos: BlockingKernelClient) -> None:
    shown(sos, "%use SoS\nhere = 7")
    assert shown(sos, "%use Danlu\n%get here --as there\nprint(there)") == "7"


def test_the_kernel_is_danlus_and_nothing_is_left_in_its_names(sos: BlockingKernelClient) -> None:
    shown(sos, "%use SoS\nonly = 1")
    before = shown(sos, "%use Danlu\nprint(get_ipython().kernel.implementation, *dir())").split()
    assert before[0] == "danlu"
    after = shown(sos, "%get only\nprint(get_ipython().kernel.implementation, *dir())").split()
    assert set(after) - set(before) <= {"only", *(f"_i{n}" for n in range(100))}


def test_what_cannot_be_pickled_is_said_and_the_rest_passes(sos: BlockingKernelClient) -> None:
    told = run(sos, "%use Danlu\n%put shut good\nshut = open('/dev/null')\ngood = 1")
    assert "shut is not passed between SoS and danlu: TypeError: cannot pickle" in told.err
    assert shown(sos, "%use SoS\nprint(good)") == "1"


def test_a_kernel_of_a_python_without_numpy_says_so_and_takes_plain_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jupyter_env: JupyterEnv
) -> None:
    env = jupyter_env("plain", ("danlu[notebook]",))
    prefix = alone(tmp_path, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    offer(prefix, jupyter_env("sos", SOS), "sos_notebook.install")
    offer(prefix, env, "danlu", "kernel", "install")
    with running("sos", cwd=str(tmp_path)) as client:
        start(client, "%use Danlu")
        shown(client, "%use SoS\nimport numpy\narray, plain = numpy.zeros(2), [0.0]")
        told = run(client, "%use Danlu\n%get array plain\nimport sys\nprint(plain, sys.prefix)")
    assert told.out.split() == ["[0.0]", str(env)]
    assert "array is not passed between SoS and danlu: ModuleNotFoundError" in told.err


def test_a_cell_in_ciaos_words_and_one_with_options_are_jobs(sos: BlockingKernelClient) -> None:
    """SoS has magics of its own, written alike: none of them takes these."""
    shown(sos, "%use SoS\nrate = 0.5")
    shown(sos, "%use Danlu\n%get rate")
    words = "%framework=pytorch\n%worker=2;%cpu=100m\n%cleanPolicy=all\n\nimport os\n"
    told = run(sos, words + "print('rank', os.environ['RANK'])")
    assert told.reply["status"] == "ok", told
    options = "%%distributed --framework pytorch --worker 2 --send rate --return half\n"
    told = run(sos, options + "half = rate / 2\n")
    assert told.reply["status"] == "ok", told
    assert shown(sos, "%put half\nprint(half)") == "0.25"
    assert shown(sos, "%use SoS\nprint(half)") == "0.25"


def test_a_failed_job_fails_the_cell_in_sos_too(sos: BlockingKernelClient) -> None:
    shown(sos, "%use Danlu")
    told = run(sos, "%%distributed --framework pytorch --worker 1\nraise ValueError('no')")
    assert told.reply["status"] == "error"
    assert told.reply["ename"] == "CellFailed"


def test_a_kernel_of_another_name_passes_values_too(
    place: Path, sos: BlockingKernelClient, jupyter_env: JupyterEnv
) -> None:
    offer(place, jupyter_env("sos", SOS), "danlu", "kernel", "install", "--name", "other")
    with running("sos", cwd=str(place.parent)) as client:
        start(client, "%use Other -k other -l Danlu")
        shown(client, "%use SoS\nvalue = [1, 2]")
        used = "%use Other\n%get value\n"
        assert shown(client, used + "print(value, get_ipython().kernel.implementation)") == (
            "[1, 2] danlu"
        )
