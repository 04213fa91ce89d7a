"""What a person is told when a job has ended: the outcome, who failed first, why, and how to
run that replica alone.
"""

from __future__ import annotations

import shlex
import signal
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import JobFailed
from danlu.training.types import ConditionType
from danlu.util.human import format_duration

if TYPE_CHECKING:
    from danlu.jobs.types import Command, Jobs, JobView, LogLine
    from danlu.training.types import FirstFailure, ReplicaId

__all__ = [
    "WORKSPACE",
    "Outcome",
    "at",
    "failed_by",
    "failure",
    "outcome",
    "reason",
    "shell_line",
    "text_of",
]

#: How many lines of the first replica that failed are shown.
LINES = 20

_PROGRESS = "KUBEFLOW_TRAINER_"

#: Where containers see the project (danlu.engine.embedded says it too, and is not loaded for it).
WORKSPACE = "/workspace"

#: So many lines are looked through for those of the attempt that failed.
_LOOKED_THROUGH = 5000


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended. ``seconds`` is None where nobody knows; ``replica`` failed first, for
    ``reason``, with ``lines`` as its last words. ``message`` is the job's own last word, ``where``
    its place as :class:`~danlu.jobs.types.JobView` has it.
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
    def succeeded(self) -> bool:
        """Whether the job reached what it was for."""
        return self.state == ConditionType.SUCCEEDED


async def outcome(jobs: Jobs, view: JobView, *, lines: int = LINES) -> Outcome:
    """How the finished job ``view`` ended."""
    first = view.status.first_failure
    succeeded = view.status.has(ConditionType.SUCCEEDED)
    base = Outcome(
        view.name, _state(view), seconds_of(view), message=_last_word(view), where=view.where
    )
    if succeeded or first is None:
        return base
    return msgspec.structs.replace(
        base,
        replica=first.replica,
        reason=reason(first.exit_code, first.reason, first.message),
        lines=await _last_lines(jobs, view.name, first, lines),
    )


def failed_by(told: Outcome, view: JobView, name: str) -> Outcome:
    """``told`` with the replica ``name`` as the one whose failure it was."""
    first = next((one for one in view.replicas if str(one.id) == name), None)
    if first is None or first.id == told.replica:
        return told
    why = reason(first.exit_code, first.reason, "")
    return msgspec.structs.replace(told, replica=first.id, reason=why)


def _state(view: JobView) -> str:
    # The latest condition of a job that ended is not always its end: Running may follow it.
    for end in (ConditionType.FAILED, ConditionType.SUCCEEDED):
        if view.status.has(end):
            return str(end)
    return view.state


def seconds_of(view: JobView) -> float | None:
    """How long a job ran, from its submission to its end."""
    begun, ended = view.created or view.status.start_time, ended_at(view)
    return (ended - begun).total_seconds() if begun and ended else None


def ended_at(view: JobView) -> datetime | None:
    """When a job ended; None while it has not, or where nobody knows."""
    if view.status.completion_time is not None:
        return view.status.completion_time
    times = [
        one.last_transition_time
        for one in view.status.conditions
        if one.type in (ConditionType.FAILED, ConditionType.SUCCEEDED) and one.status == "True"
    ]
    return times[-1] if times else None


def _last_word(view: JobView) -> str:
    if view.state == "Lost":
        return "its supervisor died before the end"
    return view.status.conditions[-1].message if view.status.conditions else ""


async def _last_lines(jobs: Jobs, name: str, first: FirstFailure, count: int) -> tuple[str, ...]:
    """The last lines of the attempt that failed first."""
    kept: deque[LogLine] = deque(maxlen=count)
    async for line in jobs.logs(name, replicas=[first.replica], tail=_LOOKED_THROUGH):
        if line.attempt <= first.attempt:
            kept.append(line)
    return tuple(text_of(one.data) for one in kept)


def text_of(data: bytes) -> str:
    """A line as text; of one that was written over itself, what was last to be seen."""
    text = data.decode(errors="replace")
    if "\r" not in text:
        return text
    return next((one for one in reversed(text.split("\r")) if one.strip()), "")


def reason(code: int | None, word: str = "", message: str = "") -> str:
    """Why a replica ended badly, in words: exit code, the signal's name, out of memory."""
    if word == "OOMKilled":
        return f"out of memory (exit code {code})" if code is not None else "out of memory"
    if word in ("StartError", "Evicted"):
        what = "could not be started" if word == "StartError" else "was evicted"
        return f"{what}: {message}" if message else what
    if code is None:
        return message or word or "no exit code"
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name} (exit code {code})"
        except ValueError:
            pass
    return f"exit code {code}"


def failure(ended: Outcome) -> JobFailed:
    """The error that says how a job failed."""
    after = "" if ended.seconds is None else f" after {format_duration(ended.seconds)}"
    lost = ended.state == "Lost"
    message = f"{ended.name} is lost" if lost else f"{ended.name} failed{after}"
    if ended.replica is None:
        return JobFailed(
            f"{message}: {ended.message}" if ended.message else message,
            hint=f"`danlu jobs logs {ended.name}{at(ended.where)}` shows what its replicas wrote",
        )
    lines = tuple(f"{ended.replica} │ {one}" for one in ended.lines)
    return JobFailed(
        f"{message}: {ended.replica} failed first: {ended.reason}",
        details=lines or (f"{ended.replica} wrote nothing",),
        hint=f"that replica alone: danlu jobs show {ended.name} --command {ended.replica}"
        f"{at(ended.where)}",
    )


def at(where: str) -> str:
    """What follows a command of danlu that is about a job of that place."""
    return "" if where in ("", "local") else f" --on {where}"


def shell_line(command: Command, *, project: str = "") -> str:
    """One line that a shell runs the replica by, with its environment.

    ``project`` is the directory that a container sees as its own.
    """
    # Nobody listens any more to what a replica would tell of its progress.
    variables = [
        f"{key}={shlex.quote(value)}"
        for key, value in command.environment.items()
        if not key.startswith(_PROGRESS)
    ]
    if command.image:
        return _in_container(command, variables, project)
    words = [*(["env"] if variables else []), *variables, shlex.join(command.args)]
    return _below(command.directory, words)


def _in_container(command: Command, variables: Sequence[str], project: str) -> str:
    set_ = [f"-e {one}" for one in variables]
    args = list(command.args)
    if command.directory not in ("", WORKSPACE):
        args = ["sh", "-c", f'cd {shlex.quote(command.directory)} && exec "$0" "$@"', *args]
    words = ["danlu run --image", shlex.quote(command.image), *set_, "--", shlex.join(args)]
    return _below(project, words)


def _below(directory: str, words: Sequence[str]) -> str:
    line = " ".join(words)
    return f"cd {shlex.quote(directory)} && {line}" if directory else line
