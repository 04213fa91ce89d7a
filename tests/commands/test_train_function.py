"""``danlu.train`` of a function: real processes of this Python, its value, what it raises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import danlu
from danlu.commands.apart import apart
from danlu.commands.jobs import here
from danlu.commands.settings import load_settings
from danlu.commands.shipping import pack, program, raised
from danlu.errors import BuildFileError, JobFailed, Span, StepFailed, UsageError
from danlu.guest import call as guest


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


def called(directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(directory, sys.executable),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, **environ},
    )


def test_a_function_is_called_in_another_process(tmp_path: Path) -> None:
    pack(os.path.join, ("a", "b"), {}, directory=tmp_path)
    value = tmp_path / "value"
    done = called(tmp_path, **{guest.VALUE: str(value)})
    assert (done.returncode, done.stderr) == (0, "")
    import pickle

    assert pickle.loads(value.read_bytes()) == "a/b"


def test_what_it_raises_comes_back_with_its_traceback(tmp_path: Path) -> None:
    pack(int, ("x",), {}, directory=tmp_path)
    done = called(tmp_path)
    assert done.returncode == 1
    assert "invalid literal" in done.stderr
    found = raised(tmp_path)
    assert found is not None
    assert isinstance(found.error, ValueError)
    assert found.text.startswith("Traceback")


def test_a_function_that_cannot_be_sent_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.commands.shipping._cloudpickle", lambda: None)
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        pack(lambda: None, (), {}, directory=tmp_path)
    assert "cloudpickle" in caught.value.hint


def test_a_function_of_a_notebook_needs_cloudpickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell() -> None: ...

    cell.__module__ = "__main__"
    monkeypatch.setattr("danlu.commands.shipping._cloudpickle", lambda: None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(UsageError, match="notebook") as caught:
        pack(cell, (), {}, directory=tmp_path)
    assert "cloudpickle" in caught.value.hint


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


@pytest.mark.parametrize("more", [{"env": "build.envd"}, {"image": "demo"}])
def test_a_function_has_no_other_environment(more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="this Python"):
        danlu.train(ranked, args=(1,), **more)  # type: ignore[arg-type]


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
