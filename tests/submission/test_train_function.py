"""``danlu.train`` of a function: real processes, return values and exceptions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import danlu
from danlu.engine.settings import load_settings
from danlu.errors import BuildFileError, JobFailed, Span, StepFailed, UsageError
from danlu.jobs.backends import local_backend, wait_for_finish
from danlu.jobs.results import open_values
from danlu.jobs.types import JobResult, JobView
from danlu.replica_runtime import call_entry, encoding, results
from danlu.submission import function_transport
from danlu.submission.call import build_call_options
from danlu.submission.function_transport import RemoteCall, leader_value, pack_call
from danlu.submission.options import TrainOptions
from danlu.training.types import JobStatus
from danlu.util.fork import run_in_child


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


def run_call(call: RemoteCall, directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Pack a call and run it as a replica does, in a Python process."""
    path = directory / "files"
    path.mkdir()
    pack_call(call, path)
    return run_packed_call(path, **environ)


def run_packed_call(place: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    output_files = {
        name: str(place.parent / name.split("_")[1].lower())
        for name in (results.VALUE_FILE, results.ERROR_FILE)
    }
    return subprocess.run(
        [sys.executable, str(place / call_entry.PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=place.parent,
        env={**os.environ, **output_files, **environ},
    )


def read_value(file: Path) -> Any:
    return open_values(file.read_bytes(), trusted=False)[call_entry.VALUE_NAME]


def save_when_terminated() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("saved")


def test_sigterm_unwinds_a_function(tmp_path: Path) -> None:
    result = run_call(RemoteCall(save_when_terminated), tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (143, "saved\n", "")
    assert not (tmp_path / "raised").exists()


def test_function_runs_in_another_process(tmp_path: Path) -> None:
    result = run_call(RemoteCall(os.path.join, ("a", "b")), tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert read_value(tmp_path / "value") == "a/b"


async def wait_and_add(first: int, second: int) -> int:
    await asyncio.sleep(0)
    return first + second


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, other: int) -> int:
        return self.number + other

    def add(self, other: int) -> int:
        return self.number + other


def test_async_function_is_awaited() -> None:
    result = danlu.train(partial(wait_and_add, second=2), workers=1, args=(3,), log=None)
    assert result == 5


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise LookupError("much later")


def test_exception_of_an_async_function_has_its_traceback(tmp_path: Path) -> None:
    result = run_call(RemoteCall(fail_later), tmp_path)
    assert result.returncode == 1
    assert "in fail_later" in result.stderr
    assert "LookupError: much later" in result.stderr


@pytest.mark.parametrize(
    ("function", "name", "job"),
    [
        (ranked, "ranked", "ranked-"),
        (partial(ranked, 3), "ranked", "ranked-"),
        (partial(partial(ranked, 3), bad="1"), "ranked", "ranked-"),
        (Adder(1), "Adder", "adder-"),
        (partial(Adder(1), 2), "Adder", "adder-"),
        (Adder(1).add, "Adder.add", "add-"),
        (Adder, "Adder", "adder-"),
        (lambda: 1, "<lambda>", "lambda-"),
    ],
)
def test_call_is_named_after_its_function(
    function: Any, name: str, job: str, tmp_path: Path
) -> None:
    call = RemoteCall(function)
    assert call.name.rpartition("<locals>.")[2] == name
    order = TrainOptions(directory=tmp_path, framework="pytorch")
    files = tmp_path / "files"
    files.mkdir()
    settings = load_settings()
    ordered = build_call_options(call, order, files=files, every=False, settings=settings)
    assert re.fullmatch(job + "[a-z0-9]{5}", ordered.name)


def test_partial_of_a_script_is_sent_by_importing_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(function_transport, "_import_cloudpickle", lambda: None)
    monkeypatch.setattr(Adder, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Adder", Adder, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/gone.py", raising=False)
    with pytest.raises(UsageError, match="Adder is defined interactively"):
        pack_call(RemoteCall(partial(Adder, 1)), tmp_path)


def test_exception_of_a_function_is_reported_with_its_traceback(tmp_path: Path) -> None:
    result = run_call(RemoteCall(int, ("x",)), tmp_path)
    assert result.returncode == 1
    assert "invalid literal" in result.stderr
    decoded = encoding.decode((tmp_path / "raised").read_bytes())
    assert (decoded["type"], decoded["text"]) == ("ValueError", result.stderr)
    assert decoded["error"] is None
    assert not (tmp_path / "value").exists()


@pytest.mark.parametrize("name", call_entry.LOCAL_RANKS)
def test_only_local_rank_0_returns_the_value(tmp_path: Path, name: str) -> None:
    result = run_call(RemoteCall(os.getpid), tmp_path, **{name: "1"})
    assert result.returncode == 0
    assert not (tmp_path / "value").exists()


def test_other_python_version_is_an_error_before_unpickling(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    pack_call(RemoteCall(print, ("called",)), tmp_path / "files")
    order = tmp_path / "files" / call_entry.MANIFEST
    order.write_text(order.read_text().replace(f'"{call_entry.minor_version()}"', '"2.7"'))
    (tmp_path / "files" / call_entry.PAYLOAD).write_bytes(b"cannot be read")
    result = run_packed_call(tmp_path / "files")
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        f"was pickled by Python 2.7, but this is Python {call_entry.minor_version()}"
        in result.stderr
    )


def test_function_that_cannot_be_sent_has_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.submission.function_transport._import_cloudpickle", lambda: None)
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        pack_call(RemoteCall(lambda: None), tmp_path)
    assert "cloudpickle" in caught.value.hint


def test_notebook_function_requires_cloudpickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell() -> None: ...

    cell.__module__ = "__main__"
    monkeypatch.setattr("danlu.submission.function_transport._import_cloudpickle", lambda: None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(UsageError, match="notebook") as caught:
        pack_call(RemoteCall(cell), tmp_path)
    assert "cloudpickle" in caught.value.hint


def test_function_for_a_container_requires_cloudpickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.submission.function_transport._import_cloudpickle", lambda: None)
    with pytest.raises(UsageError, match="containers without cloudpickle"):
        pack_call(RemoteCall(os.getpid), tmp_path, project=tmp_path)


def test_payload_for_a_container_is_self_contained(
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
    pack_call(RemoteCall(work, (2,)), tmp_path / "files", project=tmp_path / "project")
    manifest = json.loads((tmp_path / "files" / call_entry.MANIFEST).read_text())
    assert manifest["path"][0] == "/workspace/src"
    assert not any("site-packages" in path for path in manifest["path"])
    # As in an image that contains only Python.
    value = str(tmp_path / "value")
    result = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "files" / call_entry.PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={results.VALUE_FILE: value},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert read_value(Path(value)) == 42


def test_value_that_cannot_be_unpickled_is_an_error() -> None:
    view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus())
    values = {"value": {"form": "pickle", "data": b"cnowhere\nname\n."}}
    data = bytes(encoding.encode({"python": "3.11.7", "values": values}))
    with pytest.raises(UsageError, match=r"cannot read value, .* No module named 'nowhere'"):
        leader_value(JobResult(view, data, trusted=True))


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
def test_function_runs_on_each_replica_and_rank_0_returns_the_value(
    tmp_path: Path,
) -> None:
    result = script(tmp_path, SCRIPT)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert sorted(lines[:2]) == ["worker-0 │ rank 0", "worker-1 │ rank 1"]
    assert lines[2:] == ["value 5"]


@pytest.mark.real
def test_script_without_a_main_guard_starts_no_nested_jobs(tmp_path: Path) -> None:
    text = SCRIPT.replace('if __name__ == "__main__":\n    ', "")
    text = f"import sys\nsys.modules['cloudpickle'] = None\n{text}"
    result = script(tmp_path, text)
    assert result.returncode == 1
    assert '__name__ == "__main__"' in result.stdout + result.stderr


@pytest.mark.real
def test_exception_of_a_replica_is_the_cause_and_names_the_replica() -> None:
    with pytest.raises(
        JobFailed, match=r"worker-1 failed first: LookupError: .*rank 1 lost"
    ) as caught:
        danlu.train(ranked, workers=2, args=(5,), kwargs={"bad": "1"}, log=None)
    assert isinstance(caught.value.__cause__, LookupError)
    assert any("rank 1 lost its way" in detail for detail in caught.value.details)


def test_train_works_within_a_running_event_loop() -> None:
    import anyio

    lines: list[str] = []

    async def cell() -> Any:
        return danlu.train(ranked, workers=1, args=(7,), log=lines.append)

    assert anyio.run(cell) == {"rank": 0, "value": 7, "of": 1}
    assert lines == ["worker-0 │ rank 0 is here"]


@pytest.mark.real
def test_train_of_a_script_returns_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text("import sys\nprint(sys.argv[1:])\n")
    lines: list[str] = []
    outcome = danlu.train("good.py", framework="jax", args=[1], host_python=True, log=lines.append)
    assert (outcome.state, lines) == ("Succeeded", ["worker-0 │ ['1']"])
    Path("bad.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(JobFailed, match="exit code 3"):
        danlu.train("bad.py", framework="jax", host_python=True, log=None, name="bad")
    import anyio

    jobs = local_backend(load_settings())
    assert anyio.run(jobs.view, "bad").finished


@pytest.mark.real
def test_every_returns_the_value_of_each_replica() -> None:
    found = danlu.train(ranked, workers=3, args=(5,), every=True, log=None)
    assert list(found) == ["worker-0", "worker-1", "worker-2"]
    assert [result["value"] for result in found.values()] == [5, 6, 7]


def test_every_requires_a_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="every is only valid with a function"):
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
def test_detached_function_outlives_its_script_and_returns_its_value(
    tmp_path: Path,
) -> None:
    result = script(tmp_path, DETACHED.format(go=str(tmp_path / "go")))
    assert result.returncode == 0, result.stderr
    name = result.stdout.strip()
    (tmp_path / "go").touch()
    lines: list[str] = []
    assert isinstance(danlu.attach(name, log=lines.append), int)
    assert lines == ["worker-0 │ done"]
    assert list(danlu.attach(name, every=True, log=None)) == ["worker-0"]


def test_attaching_to_an_unknown_job_lists_existing_jobs() -> None:
    with pytest.raises(UsageError, match="job 'nothing' not found"):
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
def test_function_is_stopped_with_its_script(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(KILLED)
    words = [sys.executable, "-u", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().rpartition(" ")[2])
        process.kill()
    import anyio

    view = anyio.run(wait_for_finish, local_backend(load_settings()), "killed")
    assert "has exited" in view.status.conditions[-1].message
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# -- child processes ------------------------------------------------------------------------------


def test_child_process_does_not_change_the_parent() -> None:
    def work() -> int:
        os.environ["CHANGED"] = "1"
        return os.getpid()

    assert run_in_child(work) != os.getpid()
    assert "CHANGED" not in os.environ


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("make failed", code=2, details=("a", "b"), hint="look"),
        BuildFileError("bad", span=Span("build.envd", 3), source_line="x"),
    ],
)
def test_errors_of_a_child_process_keep_their_fields(error: UsageError) -> None:
    def work() -> None:
        raise ExceptionGroup("tasks", [error])

    with pytest.raises(type(error)) as caught:
        run_in_child(work)
    assert caught.value.__dict__ == error.__dict__
    assert str(caught.value) == str(error)


def test_interrupt_of_a_child_process_interrupts_the_parent() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_child(work)


def test_interrupt_of_the_parent_ends_the_child_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def work() -> None:
        import time

        note.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(50)

    with pytest.raises(KeyboardInterrupt):
        run_in_child(work)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
