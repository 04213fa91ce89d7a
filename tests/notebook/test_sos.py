"""The kernel in a SoS notebook, exchanging values with SoS and with the Python kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.notebook.conftest import JupyterEnv
from tests.notebook.kernels import run, run_alone, run_and_read_stdout, running

pytestmark = pytest.mark.notebook

#: What SoS is, with its module for Python; numpy and pandas come with it.
SOS = ("danlu[notebook]", "sos-notebook", "sos-python")


def offer_variable(prefix: Path, env: Path, *command: str) -> None:
    """Have a program of ``env`` install a kernel below ``prefix``."""
    arguments = [str(env / "bin/python"), "-m", *command, "--prefix", str(prefix)]
    subprocess.run(arguments, check=True, capture_output=True)


@contextmanager
def run_sos_kernel(cwd: Path, *magics: str) -> Iterator[BlockingKernelClient]:
    """SoS's kernel, with the kernels of ``magics`` (``%use …``) started.

    SoS sends a kernel its first cell while it is still subscribing to what that puts out. If it
    misses the message that the kernel is busy, it waits for it forever (``run_cell`` in
    ``sos_notebook.kernel``), and only another SoS helps.
    """
    with ExitStack() as stack:
        for attempt in range(1, 4):
            client = stack.enter_context(running("sos", cwd=str(cwd)))
            try:
                start_kernels(client, *magics)
                break
            except TimeoutError:
                if attempt == 3:
                    raise
                stack.close()
        yield client


def start_kernels(client: BlockingKernelClient, *magics: str) -> None:
    """Start kernels with ``%use …`` in SoS, and return to its own.

    SoS may also miss what the first cell prints: so each kernel is asked until it is heard.
    """
    for magic in magics:
        heard = (run_and_read_stdout(client, f"{magic}\nprint('heard')") for _ in range(20))
        assert "heard" in heard
    run_and_read_stdout(client, "%use SoS")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a prefix for kernels, with a separate home for SoS's logs and settings."""
    with pytest.MonkeyPatch.context() as patch:
        prefix = run_alone(tmp_path_factory.mktemp("sos"), patch)
        patch.setenv("HOME", str(prefix.parent))
        yield prefix


@pytest.fixture(scope="module")
def sos(place: Path, jupyter_env: JupyterEnv) -> Iterator[BlockingKernelClient]:
    """SoS's kernel; the kernel danlu is of the same environment."""
    env = jupyter_env("sos", SOS)
    offer_variable(place, env, "sos_notebook.install")
    offer_variable(place, env, "danlu", "kernel", "install")
    with run_sos_kernel(place.parent, "%use Danlu", "%use Python3") as client:
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
def test_sos_value_round_trips_through_the_kernel(
    sos: BlockingKernelClient, value: str, compared: str
) -> None:
    run_and_read_stdout(sos, f"%use SoS\nvalue = {value}")
    assert run_and_read_stdout(sos, f"%use Danlu\n%get value\nprint({compared})") == "True"
    run_and_read_stdout(sos, "%put back\nback = value")
    assert run_and_read_stdout(
        sos, f"%use SoS\nprint(({compared}) and {compared.replace('value', 'back')})"
    ) == ("True")


def test_sos_value_is_exchanged_with_the_python_kernel(sos: BlockingKernelClient) -> None:
    run_and_read_stdout(sos, "%use Danlu\nlosses = [0.5, 0.25]")
    assert (
        run_and_read_stdout(sos, "%use Python3\n%get losses --from Danlu\nprint(losses)")
        == "[0.5, 0.25]"
    )
    run_and_read_stdout(sos, "rate = losses[1] / 5")
    assert run_and_read_stdout(sos, "%use Danlu\n%get rate --from Python3\nprint(rate)") == "0.05"


def test_sos_value_can_be_renamed(sos: BlockingKernelClient) -> None:
    run_and_read_stdout(sos, "%use SoS\nhere = 7")
    assert run_and_read_stdout(sos, "%use Danlu\n%get here --as there\nprint(there)") == "7"


def test_sos_exchange_leaves_no_names_in_the_kernel(sos: BlockingKernelClient) -> None:
    run_and_read_stdout(sos, "%use SoS\nonly = 1")
    before = run_and_read_stdout(
        sos, "%use Danlu\nprint(get_ipython().kernel.implementation, *dir())"
    ).split()
    assert before[0] == "danlu"
    after = run_and_read_stdout(
        sos, "%get only\nprint(get_ipython().kernel.implementation, *dir())"
    ).split()
    assert set(after) - set(before) <= {"only", *(f"_i{n}" for n in range(100))}


def test_unpicklable_sos_value_is_a_warning_and_others_pass(sos: BlockingKernelClient) -> None:
    result = run(sos, "%use Danlu\n%put shut good\nshut = open('/dev/null')\ngood = 1")
    assert "cannot transfer shut between SoS and danlu: TypeError: cannot pickle" in result.err
    assert run_and_read_stdout(sos, "%use SoS\nprint(good)") == "1"


def test_kernel_without_numpy_receives_plain_values_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jupyter_env: JupyterEnv
) -> None:
    env = jupyter_env("plain", ("danlu[notebook]",))
    prefix = run_alone(tmp_path, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    offer_variable(prefix, jupyter_env("sos", SOS), "sos_notebook.install")
    offer_variable(prefix, env, "danlu", "kernel", "install")
    with run_sos_kernel(tmp_path, "%use Danlu") as client:
        run_and_read_stdout(client, "%use SoS\nimport numpy\narray, plain = numpy.zeros(2), [0.0]")
        result = run(client, "%use Danlu\n%get array plain\nimport sys\nprint(plain, sys.prefix)")
    assert result.out.split() == ["[0.0]", str(env)]
    assert "cannot transfer array between SoS and danlu: ModuleNotFoundError" in result.err


def test_directives_and_options_are_jobs_in_sos(sos: BlockingKernelClient) -> None:
    """SoS has magics with similar syntax, which must not take directives."""
    run_and_read_stdout(sos, "%use SoS\nrate = 0.5")
    run_and_read_stdout(sos, "%use Danlu\n%get rate")
    words = "%framework=pytorch\n%worker=2;%cpu=100m\n%cleanPolicy=all\n\nimport os\n"
    result = run(sos, words + "print('rank', os.environ['RANK'])")
    assert result.reply["status"] == "ok", result
    options = "%%distributed --framework pytorch --worker 2 --send rate --return half\n"
    result = run(sos, options + "half = rate / 2\n")
    assert result.reply["status"] == "ok", result
    assert run_and_read_stdout(sos, "%put half\nprint(half)") == "0.25"
    assert run_and_read_stdout(sos, "%use SoS\nprint(half)") == "0.25"


def test_failed_job_fails_the_cell_in_sos(sos: BlockingKernelClient) -> None:
    run_and_read_stdout(sos, "%use Danlu")
    result = run(sos, "%%distributed --framework pytorch --worker 1\nraise ValueError('no')")
    assert result.reply["status"] == "error"
    assert result.reply["ename"] == "CellFailed"


def test_renamed_kernel_exchanges_values_with_sos(
    place: Path, sos: BlockingKernelClient, jupyter_env: JupyterEnv
) -> None:
    offer_variable(place, jupyter_env("sos", SOS), "danlu", "kernel", "install", "--name", "other")
    with run_sos_kernel(place.parent, "%use Other -k other -l Danlu") as client:
        run_and_read_stdout(client, "%use SoS\nvalue = [1, 2]")
        used = "%use Other\n%get value\n"
        assert run_and_read_stdout(
            client, used + "print(value, get_ipython().kernel.implementation)"
        ) == ("[1, 2] danlu")
