"""``danlu.train`` of a function: real processes of this Python, its value, what it raises."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import danlu
from danlu.commands.apart import apart
from danlu.commands.jobs import finished_view, here
from danlu.commands.settings import load_settings
from danlu.commands.shipping import Call, pack, value
from danlu.errors import BuildFileError, JobFailed, Span, StepFailed, UsageError
from danlu.guest import call as guest
from danlu.jobs.types import JobView, Result
from danlu.training.types import JobStatus


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def ranked(base: int, *, bad: str = "") -> dict[str, int]:
    rank = os.environ["RANK"]
    print(f"rank {rank} is here")
    if rank == bad:
        raise LookupError(f"rank {rank} lost its way")
    return {"rank": int(rank), "value": base + int(rank), "of": int(os.environ["WORLD_SIZE"])}


def called(call: Call, directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a replica does, in a process of this Python."""
    place = directory / "files"
    place.mkdir()
    pack(call, place)
    return run_there(place, **environ)


def run_there(place: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    results = {guest.VALUE: str(place.parent / "value"), guest.RAISED: str(place.parent / "raised")}
    return subprocess.run(
        [sys.executable, str(place / guest.PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=place.parent,
        env={**os.environ, **results, **environ},
    )


def test_a_function_is_called_in_another_process(tmp_path: Path) -> None:
    done = called(Call(os.path.join, ("a", "b")), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert pickle.loads((tmp_path / "value").read_bytes()) == "a/b"


def test_what_it_raises_is_told_with_its_traceback(tmp_path: Path) -> None:
    done = called(Call(int, ("x",)), tmp_path)
    assert done.returncode == 1
    assert "invalid literal" in done.stderr
    told = pickle.loads((tmp_path / "raised").read_bytes())
    assert (told["type"], told["text"]) == ("ValueError", done.stderr)
    assert isinstance(pickle.loads(told["error"]), ValueError)
    assert not (tmp_path / "value").exists()


@pytest.mark.parametrize("name", guest.LOCAL_RANKS)
def test_the_first_of_a_launchers_processes_gives_the_value(tmp_path: Path, name: str) -> None:
    done = called(Call(os.getpid), tmp_path, **{name: "1"})
    assert done.returncode == 0
    assert not (tmp_path / "value").exists()


def test_another_python_is_refused_before_anything_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    pack(Call(print, ("called",)), tmp_path / "files")
    order = tmp_path / "files" / guest.ORDER
    order.write_text(order.read_text().replace(f'"{guest.python()}"', '"2.7"'))
    (tmp_path / "files" / guest.PAYLOAD).write_bytes(b"cannot be read")
    done = run_there(tmp_path / "files")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"comes from Python 2.7, and this is Python {guest.python()}" in done.stderr


def test_a_function_that_cannot_be_sent_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.commands.shipping._cloudpickle", lambda: None)
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        pack(Call(lambda: None), tmp_path)
    assert "cloudpickle" in caught.value.hint


def test_a_function_of_a_notebook_needs_cloudpickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell() -> None: ...

    cell.__module__ = "__main__"
    monkeypatch.setattr("danlu.commands.shipping._cloudpickle", lambda: None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(UsageError, match="notebook") as caught:
        pack(Call(cell), tmp_path)
    assert "cloudpickle" in caught.value.hint


def test_containers_get_functions_by_cloudpickle_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.commands.shipping._cloudpickle", lambda: None)
    with pytest.raises(UsageError, match="containers without cloudpickle"):
        pack(Call(os.getpid), tmp_path, project=tmp_path)


def test_what_is_sent_to_containers_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = 40

    def work(more: int) -> int:
        danlu.report(percentage=1)
        return base + more

    work.__module__ = "__main__"
    monkeypatch.syspath_prepend(str(tmp_path / "project/src"))
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    pack(Call(work, (2,)), tmp_path / "files", project=tmp_path / "project")
    told = json.loads((tmp_path / "files" / guest.ORDER).read_text())
    assert told["path"][0] == "/workspace/src"
    assert not any("site-packages" in one for one in told["path"])
    # As in an image that has nothing but Python.
    value = str(tmp_path / "value")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "files" / guest.PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={guest.VALUE: value},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert pickle.loads(Path(value).read_bytes()) == 42


def test_a_value_that_cannot_be_read_here_says_so() -> None:
    view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus())
    with pytest.raises(UsageError, match="cannot be read here: No module named 'nowhere'"):
        value(Result(view, b"cnowhere\nname\n."))


SCRIPT = """
import os, danlu

class Point:
    def __init__(self, x):
        self.x = x

def work(point):
    print("rank", os.environ["RANK"])
    return Point(point.x + 1)

if __name__ == "__main__":
    print("value", danlu.train(work, workers=2, args=(Point(4),)).x)
"""


def script(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = directory / "script.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=50
    )


@pytest.mark.real
def test_a_function_of_a_script_runs_on_each_replica_and_rank_0_gives_the_value(
    tmp_path: Path,
) -> None:
    done = script(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) == ["worker-0 │ rank 0", "worker-1 │ rank 1"]
    assert lines[2:] == ["value 5"]


@pytest.mark.real
def test_a_script_without_a_guard_does_not_start_jobs_for_ever(tmp_path: Path) -> None:
    text = SCRIPT.replace('if __name__ == "__main__":\n    ', "")
    text = f"import sys\nsys.modules['cloudpickle'] = None\n{text}"
    done = script(tmp_path, text)
    assert done.returncode == 1
    assert '__name__ == "__main__"' in done.stdout + done.stderr


@pytest.mark.real
def test_an_exception_names_its_replica_and_is_the_cause() -> None:
    with pytest.raises(JobFailed, match="worker-1 failed first: exit code 1") as caught:
        danlu.train(ranked, workers=2, args=(5,), kwargs={"bad": "1"}, log=None)
    assert isinstance(caught.value.__cause__, LookupError)
    assert any("rank 1 lost its way" in one for one in caught.value.details)


def test_it_works_where_an_event_loop_runs() -> None:
    import anyio

    lines: list[str] = []

    async def cell() -> Any:
        return danlu.train(ranked, workers=1, args=(7,), log=lines.append)

    assert anyio.run(cell) == {"rank": 0, "value": 7, "of": 1}
    assert lines == ["worker-0 │ rank 0 is here"]


@pytest.mark.real
def test_a_script_gives_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text("import sys\nprint(sys.argv[1:])\n")
    lines: list[str] = []
    told = danlu.train("good.py", framework="jax", args=[1], host_python=True, log=lines.append)
    assert (told.state, lines) == ("Succeeded", ["worker-0 │ ['1']"])
    Path("bad.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(JobFailed, match="exit code 3"):
        danlu.train("bad.py", framework="jax", host_python=True, log=None, name="bad")
    import anyio

    jobs = here(load_settings())
    assert anyio.run(jobs.view, "bad").finished


@pytest.mark.real
def test_what_each_replica_returned_is_given_when_asked() -> None:
    found = danlu.train(ranked, workers=3, args=(5,), every=True, log=None)
    assert list(found) == ["worker-0", "worker-1", "worker-2"]
    assert [one["value"] for one in found.values()] == [5, 6, 7]


def test_every_is_for_functions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="every is for functions"):
        danlu.train("script.py", every=True)


DETACHED = """
import os, danlu

def work(where):
    import time
    while not os.path.exists(where):
        time.sleep(0.01)
    print("done")
    return os.getpid()

if __name__ == "__main__":
    print(danlu.train(work, workers=1, args=({go!r},), detach=True), flush=True)
    os._exit(0)
"""


@pytest.mark.real
def test_a_detached_function_goes_on_without_its_script_and_its_value_is_had_later(
    tmp_path: Path,
) -> None:
    done = script(tmp_path, DETACHED.format(go=str(tmp_path / "go")))
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    (tmp_path / "go").touch()
    lines: list[str] = []
    assert isinstance(danlu.attach(name, log=lines.append), int)
    assert lines == ["worker-0 │ done"]
    assert list(danlu.attach(name, every=True, log=None)) == ["worker-0"]


def test_attaching_to_no_job_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="there is no job nothing"):
        danlu.attach("nothing")


KILLED = """
import os, danlu, signal, sys

def work():
    import time
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    danlu.train(work, workers=1, name="killed")
"""


@pytest.mark.real
def test_a_function_ends_with_the_script_that_called_it(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(KILLED)
    words = [sys.executable, "-u", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().rpartition(" ")[2])
        process.kill()
    import anyio

    view = anyio.run(finished_view, here(load_settings()), "killed")
    assert "is gone" in view.status.conditions[-1].message
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# -- work done apart ------------------------------------------------------------------------------


def test_work_done_apart_changes_nothing_here() -> None:
    def work() -> int:
        os.environ["CHANGED"] = "1"
        return os.getpid()

    assert apart(work) != os.getpid()
    assert "CHANGED" not in os.environ


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("make failed", code=2, details=("a", "b"), hint="look"),
        BuildFileError("bad", span=Span("build.envd", 3), source_line="x"),
    ],
)
def test_errors_come_back_whole(error: UsageError) -> None:
    def work() -> None:
        raise ExceptionGroup("tasks", [error])

    with pytest.raises(type(error)) as caught:
        apart(work)
    assert caught.value.__dict__ == error.__dict__
    assert str(caught.value) == str(error)


def test_an_interrupted_child_interrupts_us() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart(work)


def test_an_interrupt_that_only_we_got_ends_the_child(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def work() -> None:
        import time

        note.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(50)

    with pytest.raises(KeyboardInterrupt):
        apart(work)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
