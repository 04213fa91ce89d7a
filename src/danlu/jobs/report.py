"""Report how a job ended: its outcome, the first failure, and how to rerun that replica alone."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections import deque
from collections.abc import Sequence
from datetime import datetime

import msgspec

from danlu.errors import JobFailed
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.types import KILLED, JobBackend, JobView, LogLine, ReplicaCommand, killed_sentence
from danlu.training.types import ConditionType, FirstFailure, ReplicaId
from danlu.util.danlu_program import CALLER_CONTEXT_VARIABLE, LOCAL_CONTEXT
from danlu.util.human import format_duration
from danlu.util.sanitize import strip_control_sequences

#: How many lines of the failed replica's log are shown.
MAX_LOG_LINES = 20

_OUT_OF_MEMORY = "ran out of memory (OOMKilled)"

_PROGRESS_PREFIX = "KUBEFLOW_TRAINER_"

#: Where containers see the project. danlu.sandbox.types has it too; it is too heavy to import.
WORKSPACE = "/workspace"

#: How many lines are searched for those of the failed attempt.
_MAX_LINES_SEARCHED = 5000

#: Erases a line, or the screen (ECMA-48, EL and ED).
_ERASES = re.compile("\x1b\\[[0-3]?[JK]")


class JobSummary(msgspec.Struct, frozen=True):
    """How a job ended.

    ``seconds`` is None if unknown. ``replica`` failed first, for ``reason``; ``lines`` are the end
    of its log. ``message`` is that of the job's last condition, ``where`` its target as in
    :class:`~danlu.jobs.types.JobView`.
    """

    name: str
    state: str
    seconds: float | None = None
    replica: ReplicaId | None = None
    reason: str = ""
    message: str = ""
    lines: tuple[str, ...] = ()
    where: str = "local"

    @property
    def is_successful(self) -> bool:
        """Whether the job succeeded."""
        return self.state == ConditionType.SUCCEEDED


async def summarize_job(
    jobs: JobBackend, view: JobView, *, lines: int = MAX_LOG_LINES
) -> JobSummary:
    """Return how a finished job ended."""
    first = (await explain_first_failure(jobs, view)).status.first_failure
    succeeded = view.status.has_condition(ConditionType.SUCCEEDED)
    base = JobSummary(
        view.name,
        _final_state(view),
        job_seconds(view),
        message=_last_message(view),
        where=view.where,
    )
    if succeeded or first is None:
        return base
    return msgspec.structs.replace(
        base,
        replica=first.replica,
        reason=describe_exit(first.exit_code, first.reason, first.message),
        lines=await _last_lines(jobs, view.name, first, lines),
    )


def blame_replica(summary: JobSummary, view: JobView, name: str, reason: str) -> JobSummary:
    """Return the summary with ``name`` as the replica that failed first, for ``reason``."""
    found = next((replica.id for replica in view.replicas if str(replica.id) == name), None)
    return msgspec.structs.replace(summary, replica=found or summary.replica, reason=reason)


def _final_state(view: JobView) -> str:
    # The last condition of a finished job is not always the final one: Running may follow it.
    for end in (ConditionType.FAILED, ConditionType.SUCCEEDED):
        if view.status.has_condition(end):
            return str(end)
    return view.state


def job_seconds(view: JobView) -> float | None:
    """Return how long a job ran, from its submission to its end."""
    started, ended = view.created or view.status.start_time, job_end_time(view)
    return (ended - started).total_seconds() if started and ended else None


def job_end_time(view: JobView) -> datetime | None:
    """Return when a job ended; None if it has not, or if that is unknown."""
    if view.status.completion_time is not None:
        return view.status.completion_time
    times = [
        condition.last_transition_time
        for condition in view.status.conditions
        if condition.type in (ConditionType.FAILED, ConditionType.SUCCEEDED)
        and condition.status == "True"
    ]
    return times[-1] if times else None


def _last_message(view: JobView) -> str:
    if view.state == "Lost":
        return "its supervisor died"
    return view.status.conditions[-1].message if view.status.conditions else ""


async def _last_lines(
    jobs: JobBackend, name: str, first: FirstFailure, count: int
) -> tuple[str, ...]:
    """Return the end of the log of the attempt that failed first."""
    kept: deque[LogLine] = deque(maxlen=count)
    async for line in jobs.logs(name, replicas=[first.replica], tail=_MAX_LINES_SEARCHED):
        if line.attempt <= first.attempt:
            if kept and line.overwrites(kept[-1]):
                kept.pop()
            kept.append(line)
    return tuple(map(decode_log_line, kept))


def decode_line(data: bytes) -> str:
    """Return a line as text; of one with carriage returns (a progress bar), what was shown last.

    That is what a terminal shows: each part overwrites the one before, as far as it goes.
    """
    text = data.decode(errors="replace")
    if "\r" not in text:
        return text
    shown = ""
    for part in reversed(text.split("\r")):
        shown += strip_control_sequences(part)[len(shown) :]
        if _ERASES.search(part):
            break
    return shown


class ProgressBarFilter:
    """Selects which states of progress bars to show where a line cannot be overwritten.

    A bar is shown every second, and less often the longer it runs.
    """

    def __init__(self) -> None:
        self._bars: dict[ReplicaId, tuple[datetime, datetime]] = {}
        self._held: dict[ReplicaId, LogLine] = {}

    def feed(self, line: LogLine) -> list[LogLine]:
        """Return the lines to show now."""
        if line.is_transient and not strip_control_sequences(decode_line(line.data)):
            return []  # it only clears the line
        held = self._held.pop(line.replica, None)
        shown = [held] if held is not None and not line.overwrites(held) else []
        if not line.is_transient:
            ends_bar = self._bars.pop(line.replica, None) is not None and not line.data
            return shown if ends_bar else [*shown, line]
        began, last = self._bars.get(line.replica, (line.time, None))
        age = (line.time - began).total_seconds()
        if last is None or (line.time - last).total_seconds() >= max(1.0, age / 10):
            self._bars[line.replica] = began, line.time
            return [*shown, line]
        self._held[line.replica] = line
        return shown

    def flush(self) -> list[LogLine]:
        """Return the last states, which nothing has overwritten."""
        held = list(self._held.values())
        self._held.clear()
        return held


def decode_log_line(line: LogLine) -> str:
    """Return a line of a log as text; one that was cut because it is too long is marked."""
    text = decode_line(line.data)
    return f"{text} [line continues]" if line.continues else text


def describe_exit(code: int | None, word: str = "", message: str = "") -> str:
    """Describe why a replica failed: exit code, signal name, out of memory."""
    if word == "OOMKilled":
        return f"{_OUT_OF_MEMORY}: {message}" if message else _OUT_OF_MEMORY
    if word in ("StartError", "Evicted"):
        what = "could not be started" if word == "StartError" else "was evicted"
        return f"{what}: {message}" if message else what
    if code is None:
        return message or word or "no exit code"
    if message:
        # 1 is what Python exits with after any exception.
        return message if code == 1 else f"{message}; {describe_exit(code, word)}"
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            return f"exit code {code}"
        # Programs that are compiled for newer processors: docs/guides/platforms.md.
        why = ": the processor lacks an instruction of the program" if name == "SIGILL" else ""
        if word == name:
            return f"killed by {name} (exit code {code}){why}"
        # In a container, the program itself may have returned this code.
        return f"exit code {code} (as after {name}){why}"
    return f"exit code {code}"


def describe_kills(view: JobView) -> str:
    """Return which replicas of a stopped job were killed; empty if all exited in time."""
    return killed_sentence(replica.id for replica in view.replicas if replica.reason == KILLED)


def job_error(summary: JobSummary) -> JobFailed:
    """Return the error that reports how a job failed."""
    after = "" if summary.seconds is None else f" after {format_duration(summary.seconds)}"
    lost = summary.state == "Lost"
    message = f"{summary.name} is lost" if lost else f"{summary.name} failed{after}"
    if summary.replica is None:
        return JobFailed(
            f"{message}: {summary.message}" if summary.message else message,
            hint=f"see its logs: `danlu jobs logs {summary.name}{format_on_option(summary.where)}`",
        )
    lines = tuple(f"{summary.replica} │ {line}" for line in summary.lines)
    command = f"danlu jobs show {summary.name} --command {summary.replica}"
    on = format_on_option(summary.where)
    hints = [f"to get a command that reruns only {summary.replica}: {command}{on}"]
    if summary.reason.startswith(_OUT_OF_MEMORY):
        hints.insert(0, "raise its limit with --memory, or in the manifest")
    return JobFailed(
        f"{message}: {summary.replica} failed first: {summary.reason}",
        details=lines or (f"{summary.replica} printed nothing",),
        hint="\n".join(hints),
    )


def format_on_option(where: str) -> str:
    """Return the ``--on`` option for commands about a job of that target.

    A job of this machine may have been started from another one, where the user is.
    """
    is_local = where in ("", LOCAL_CONTEXT)
    name = os.environ.get(CALLER_CONTEXT_VARIABLE, "") if is_local else where
    return f" --on {name}" if name else ""


def format_shell_line(command: ReplicaCommand, *, project: str = "") -> str:
    """Return a shell command line that runs the replica with its environment.

    ``project`` is the directory that is mounted as the workspace of a container.
    """
    # No server receives progress reports any more.
    variables = [
        f"{key}={shlex.quote(value)}"
        for key, value in command.environment.items()
        if not key.startswith(_PROGRESS_PREFIX)
    ]
    if command.image:
        return _container_line(command, variables, project)
    words = [*(["env"] if variables else []), *variables, shlex.join(command.args)]
    return _prefix_cd(command.directory, words)


def _container_line(command: ReplicaCommand, variables: Sequence[str], project: str) -> str:
    set_ = [f"-e {variable}" for variable in variables]
    args = list(command.args)
    if command.directory not in ("", WORKSPACE):
        args = ["sh", "-c", f'cd {shlex.quote(command.directory)} && exec "$0" "$@"', *args]
    words = ["danlu run --image", shlex.quote(command.image), *set_, "--", shlex.join(args)]
    return _prefix_cd(project, words)


def _prefix_cd(directory: str, words: Sequence[str]) -> str:
    line = " ".join(words)
    return f"cd {shlex.quote(directory)} && {line}" if directory else line
