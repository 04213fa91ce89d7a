"""Which replica failed first, by what the replicas printed: not always the one that ended first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

import anyio
import msgspec
import pytest

from danlu.errors import OutsideError
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.report import summarize_job
from danlu.jobs.results import ReplicaError, find_causing_error
from danlu.jobs.types import LogLine, ReplicaView
from danlu.training.types import FirstFailure

from .fake_jobs import START, FakeJobs, JobScript, replica, view

VALUE_ERROR = "ValueError: the loss is nan"
LOST = "ConnectionResetError: [Errno 104] Connection reset by peer"


def ended(
    index: int, seconds: float, state: Literal["Failed", "Stopped"] = "Failed", code: int = 1
) -> ReplicaView:
    return ReplicaView(
        replica(index),
        state,
        exit_code=code,
        reason="Error",
        finished=START + timedelta(seconds=seconds),
    )


def traceback(index: int, seconds: float, error: str, *, prefix: str = "") -> list[LogLine]:
    texts = ["Traceback (most recent call last):", '  File "train.py", line 1', *error.split("\n")]
    at = START + timedelta(seconds=seconds)
    return [
        LogLine(replica(index), 0, number, at, f"{prefix}{text}".encode())
        for number, text in enumerate(texts)
    ]


def find_first(
    replicas: Sequence[ReplicaView], lines: Sequence[LogLine], *, first: FirstFailure | None = None
) -> tuple[str, str]:
    """Return the replica that failed first, and why, if the first of ``replicas`` ended first."""
    earliest = replicas[0]
    known = first or FirstFailure(
        earliest.id, exit_code=earliest.exit_code, reason="Error", time=earliest.finished
    )
    failed = view("Failed", *replicas, first=known)
    jobs = FakeJobs(demo=JobScript([failed], lines))
    summary = anyio.run(summarize_job, jobs, failed)
    return str(summary.replica), summary.reason


def test_the_replica_whose_traceback_began_first_failed_first() -> None:
    lines = [*traceback(0, 1.002, "RuntimeError: no"), *traceback(1, 1.001, VALUE_ERROR)]
    assert find_first([ended(0, 1.01), ended(1, 1.02)], lines) == (
        "worker-1",
        f"{VALUE_ERROR} (line 1 of train.py)",
    )


def test_a_lost_connection_is_not_the_first_failure_even_if_it_is_printed_first() -> None:
    lines = [*traceback(0, 1.001, LOST), *traceback(1, 1.005, VALUE_ERROR)]
    assert find_first([ended(0, 1.01), ended(1, 1.02)], lines)[0] == "worker-1"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:41",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970\n"
        "ncclRemoteError: A call failed possibly due to a network error or remote process exit",
        "torch.distributed.DistNetworkError: Connection was likely closed.",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_errors_of_pytorch_that_report_a_lost_peer_are_consequences(error: str) -> None:
    lines = [
        *traceback(0, 1.001, error, prefix="[rank0]: "),
        *traceback(1, 1.005, VALUE_ERROR, prefix="[rank1]: "),
    ]
    assert find_first([ended(0, 1.01), ended(1, 1.02)], lines)[0] == "worker-1"


def test_a_lost_connection_is_the_first_failure_if_no_other_explains_it() -> None:
    lines = [*traceback(0, 1.001, LOST), *traceback(1, 30, VALUE_ERROR)]
    assert find_first([ended(0, 1.01), ended(1, 1.02)], lines)[0] == "worker-0"
    assert find_first([ended(0, 1.01)], traceback(0, 1, LOST))[0] == "worker-0"


def test_a_replica_stopped_after_it_failed_is_shown_with_its_error() -> None:
    lines = [*traceback(0, 1.001, LOST), *traceback(1, 1.005, VALUE_ERROR)]
    replicas = [ended(0, 1.01), ended(1, 1.02, "Stopped", 143)]
    assert find_first(replicas, lines) == ("worker-1", f"{VALUE_ERROR} (line 1 of train.py)")


def test_a_replica_stopped_by_its_signal_did_not_fail() -> None:
    stopped = ended(1, 1.02, "Stopped", 143)
    lines = [*traceback(0, 1.001, LOST), *traceback(1, 1.005, "KeyboardInterrupt")]
    assert find_first([ended(0, 1.01), stopped], lines)[0] == "worker-0"
    assert find_first([ended(0, 1.01), stopped], traceback(0, 1.001, LOST))[0] == "worker-0"


def test_a_killed_replica_without_a_traceback_is_the_cause_of_lost_connections() -> None:
    killed = ended(1, 1.02, code=137)
    found = find_first([ended(0, 1.01), killed], traceback(0, 1.001, LOST))
    assert found == ("worker-1", "exit code 137 (as after SIGKILL)")


def test_a_handled_error_long_before_the_end_does_not_count() -> None:
    lines = [
        *traceback(0, -100, "ImportError: no apex"),
        *traceback(0, 1.002, LOST),
        *traceback(1, 1.001, VALUE_ERROR),
    ]
    assert find_first([ended(0, 1.01), ended(1, 1.02)], lines)[0] == "worker-1"


def test_a_launchers_own_traceback_later_is_of_the_same_failure() -> None:
    lines = [
        *traceback(0, 1.001, VALUE_ERROR),
        *traceback(1, 1.002, "RuntimeError: no"),
        *traceback(0, 4, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
    ]
    assert find_first([ended(1, 1.01), ended(0, 4.1)], lines)[0] == "worker-0"


def test_a_replica_that_ended_long_after_is_not_compared() -> None:
    lines = [*traceback(0, 1.002, LOST), *traceback(1, 1.001, VALUE_ERROR)]
    assert find_first([ended(0, 1.01), ended(1, 90)], lines)[0] == "worker-0"


def test_the_first_failure_of_an_earlier_attempt_is_kept() -> None:
    lines = [*traceback(0, 1.002, LOST), *traceback(1, 1.001, VALUE_ERROR)]
    again = msgspec.structs.replace(ended(0, 1.01), attempt=1)
    first = FirstFailure(replica(0), attempt=0, exit_code=1, time=START + timedelta(seconds=1))
    assert find_first([again, ended(1, 1.02)], lines, first=first)[0] == "worker-0"


def printed(*texts: str, seconds: float = 1) -> list[LogLine]:
    at = START + timedelta(seconds=seconds)
    return [LogLine(replica(0), 0, number, at, text.encode()) for number, text in enumerate(texts)]


FRAMES = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 12, in <module>',
    "    fit(data)",
    '  File "/usr/lib/python3/dist-packages/numpy/core.py", line 7, in fit',
    "    raise ValueError",
)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((*FRAMES, "ValueError: no"), "ValueError: no (line 12 of train.py)"),
        (("[rank0]: " + FRAMES[0], "[rank0]: ValueError: no"), "ValueError: no"),
        (
            (
                *FRAMES,
                "KeyError: 'a'",
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                FRAMES[0],
                '  File "/workspace/data.py", line 3, in load',
                "RuntimeError: no data",
            ),
            "RuntimeError: no data (line 3 of data.py)",
        ),
        (
            (
                *FRAMES,
                "ValueError: Caught ValueError in DataLoader worker process 0.",
                "Original Traceback (most recent call last):",
                '  File "/workspace/data.py", line 4, in __getitem__',
                "ValueError: bad image",
            ),
            "ValueError: bad image (line 4 of data.py)",
        ),
        (
            (*FRAMES, "ValueError: no", FRAMES[0], "launcher.ChildFailedError: train.py"),
            "ValueError: no (line 12 of train.py)",
        ),
        (
            (*FRAMES, "ValueError: no", "Exception ignored in: <function f>", *FRAMES, "OSError"),
            "ValueError: no (line 12 of train.py)",
        ),
        (
            ('  File "/workspace/train.py", line 5', "    x = = 1", "SyntaxError: invalid syntax"),
            "SyntaxError: invalid syntax (line 5 of train.py)",
        ),
        ((*FRAMES, "\x1b[31mValueError: \x07no\x1b[0m"), "ValueError: no (line 12 of train.py)"),
        (("no such luck",), "exit code 1"),
    ],
)
def test_the_reason_is_the_error_and_the_line_of_the_users_file(
    texts: Sequence[str], reason: str
) -> None:
    assert find_first([ended(0, 1.01)], printed(*texts)) == ("worker-0", reason)


@pytest.mark.parametrize(
    ("code", "texts", "message"),
    [
        (2, ("train.py: error: --epochs\x1b[0m", ""), "it last printed: train.py: error: --epochs"),
        (137, ("epoch 3",), ""),
        (1, (), ""),
    ],
)
def test_a_program_without_a_traceback_failed_for_what_it_last_printed(
    code: int, texts: Sequence[str], message: str
) -> None:
    last = ended(0, 1.01, code=code)
    first = FirstFailure(last.id, exit_code=code, time=last.finished)
    failed = view("Failed", last, first=first)
    jobs = FakeJobs(demo=JobScript([failed], printed(*texts)))
    found = anyio.run(partial(explain_first_failure, jobs, failed, last_line=True))
    assert found.status.first_failure == msgspec.structs.replace(first, message=message)


def test_an_error_that_the_program_survived_is_not_the_reason() -> None:
    lines = printed(*FRAMES, "ValueError: no", seconds=1)
    assert find_first([ended(0, 60)], lines) == ("worker-0", "exit code 1")


def test_another_exit_code_than_that_of_an_exception_is_shown_with_the_error() -> None:
    lines = printed("Fatal Python error: Segmentation fault")
    found = find_first([ended(0, 1.01, code=139)], lines)[1]
    assert found == "Fatal Python error: Segmentation fault; exit code 139 (as after SIGSEGV)"


def test_an_instruction_that_the_processor_lacks_is_named() -> None:
    found = find_first([ended(0, 1.01, code=132)], printed("Illegal instruction"))[1]
    assert "as after SIGILL): the processor lacks an instruction of the program" in found


def test_a_job_can_be_shown_without_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FirstFailure(replica(0), exit_code=1, time=START + timedelta(seconds=1))
    failed = view("Failed", ended(0, 1.01), first=first)
    jobs = FakeJobs(demo=JobScript([failed]))

    def refuse(*args: object, **options: object) -> None:
        raise OutsideError("pods/log is forbidden")

    monkeypatch.setattr(jobs, "logs", refuse)
    assert anyio.run(explain_first_failure, jobs, failed) is failed


def test_the_view_of_a_running_job_is_left_alone() -> None:
    running = view("Running", first=FirstFailure(replica(0), time=START))
    assert anyio.run(explain_first_failure, FakeJobs(), running) is running


def test_the_exception_of_a_replica_that_lost_a_connection_is_not_the_cause() -> None:
    lost = ReplicaError("", "ConnectionResetError", "[Errno 104] Connection reset by peer", 1.0)
    cause = ReplicaError("", "ValueError", "the loss is nan", 1.004)
    assert find_causing_error({"worker-0": lost, "worker-1": cause}) == "worker-1"
    assert find_causing_error({"worker-0": lost}) == "worker-0"
