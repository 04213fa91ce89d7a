"""Renderers of a training job: merged logs on stdout, everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from zlib import crc32

from danlu.cli.error_rendering import print_warning
from danlu.cli.terminal import Terminal
from danlu.jobs.backends import view_to_json
from danlu.jobs.report import ProgressBarFilter, decode_log_line, describe_exit
from danlu.jobs.types import JobView, LogLine, ReplicaView
from danlu.submission.job_view_model import format_metrics
from danlu.training.messages import name_some
from danlu.training.types import ReplicaId
from danlu.util.sanitize import strip_control_sequences

#: Percents between two lines about progress.
_PERCENT_STEP = 10

#: Fields that change all the time, which is not an event.
_VOLATILE_FIELDS = ("cpu", "memory")


class JobRenderer(Protocol):
    """Shows a job while it runs; called from one thread."""

    def view(self, view: JobView) -> None:
        """Show a change of the job."""

    def line(self, line: LogLine) -> None:
        """Show a log line of a replica."""

    def notice(self, text: str) -> None:
        """Show ``text`` below the job from now on, if anything is drawn."""

    def tick(self) -> None:
        """Redraw what changes with time; called several times a second."""

    def stop(self) -> None:
        """Restore the terminal; may be called twice."""


# -- renderers that draw nothing


class QuietJobRenderer:
    """Writes only log lines, to stdout."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._prefixes = LogPrefixes(terminal.style_stdout, unicode=terminal.out_unicode)
        self._bars = ProgressBarFilter()

    def view(self, view: JobView) -> None:
        """Learn the width of the replicas' names."""
        self._prefixes.register(replica.id for replica in view.replicas)

    def line(self, line: LogLine) -> None:
        """Write the line."""
        self._write_lines(self._bars.feed(line))

    def _write_lines(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._terminal.write_stdout(format_log_line(line, self._prefixes))

    def notice(self, text: str) -> None:
        """Do nothing."""

    def tick(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Write the last states of progress bars."""
        self._write_lines(self._bars.flush())


class JsonJobRenderer(QuietJobRenderer):
    """Writes log lines to stdout, and an event of type ``job`` to stderr for each change."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._last: dict[str, Any] = {}

    def view(self, view: JobView) -> None:
        """Write the job if it changed."""
        super().view(view)
        event = _job_event(view)
        if event != self._last:
            self._last = event
            self._terminal.write_stderr(json.dumps(event))


def _job_event(view: JobView) -> dict[str, Any]:
    fields = view_to_json(view)
    for replica in fields["replicas"]:
        for name in _VOLATILE_FIELDS:
            replica.pop(name, None)
    # Every report was an event when it came: repeating all of them would grow without limit.
    (fields.get("progress") or {}).pop("history", None)
    names = ("name", "kind", "state", "replicas", "progress", "warnings")
    return {"type": "job"} | {name: fields.get(name) for name in names}


class PlainJobRenderer(QuietJobRenderer):
    """Writes log lines to stdout, and a line to stderr for each change of a replica."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._printed: dict[str, str] = {}
        self._warnings = WarningPrinter(terminal)
        self._percentage = -_PERCENT_STEP

    def view(self, view: JobView) -> None:
        """Print what changed."""
        super().view(view)
        self._warnings.print_new(view)
        for replica in view.replicas:
            self._print_replica(replica)
        self._print_finishing(view)
        self._print_progress(view)

    def _print_replica(self, replica: ReplicaView) -> None:
        text = f"{replica.id}: {_describe_replica(replica)}"
        if self._printed.get(str(replica.id), f"{replica.id}: pending") != text:
            self._terminal.info(self._terminal.style(strip_control_sequences(text), "dim"))
        self._printed[str(replica.id)] = text

    def _print_finishing(self, view: JobView) -> None:
        """Print which replicas a job that has succeeded still waits for."""
        running = [
            replica.id for replica in view.replicas if replica.state in ("Running", "Pending")
        ]
        text = f"{view.name} has succeeded; waiting for {name_some(running)} to finish"
        if view.state == "Finishing" and running and self._printed.get("finishing") != text:
            self._printed["finishing"] = text
            self._terminal.info(text)

    def _print_progress(self, view: JobView) -> None:
        progress = view.progress
        if progress is None or progress.percentage is None:
            return
        if progress.percentage >= self._percentage + _PERCENT_STEP or progress.percentage == 100:
            if progress.percentage == self._percentage:
                return
            self._percentage = progress.percentage
            self._terminal.info(f"{progress.percentage} %  {format_metrics(progress)}".rstrip())


def _describe_replica(replica: ReplicaView) -> str:
    """Return ``running (restart 2)``, ``failed (exit code 1, restart 2)`` or ``pending: …``."""
    state = replica.state.lower()
    if replica.waits:
        return f"{state}: {replica.waits}"
    details = [f"restart {replica.restarts}"] if replica.restarts else []
    if replica.state == "Failed":
        why = describe_exit(replica.exit_code, replica.reason, replica.message)
        details.insert(0, why)
    return f"{state} ({', '.join(details)})" if details else state


# -- lines -----------------------------------------------------------------------------------------

_REPLICA_COLORS = ("cyan", "green", "yellow", "blue", "magenta", "red")


def replica_color(replica: ReplicaId) -> str:
    """Return the colour of a replica: the same in every run, another for its neighbours."""
    index = crc32(replica.type.lower().encode()) + replica.index
    return _REPLICA_COLORS[index % len(_REPLICA_COLORS)]


class LogPrefixes:
    """Prefixes of log lines (``worker-0 │ ``), as wide as the widest registered replica.

    ``style`` colours a text if the stream can show colours.
    """

    def __init__(self, style: Callable[[str, str], str], *, unicode: bool) -> None:
        self._bar = "│" if unicode else "|"
        self._style = style
        self._width = 0
        self._cache: dict[ReplicaId, str] = {}

    def register(self, replicas: Iterable[ReplicaId]) -> None:
        """Make room for the names of these replicas."""
        width = max((len(str(replica)) for replica in replicas), default=0)
        if width > self._width:
            self._width = width
            self._cache.clear()

    def format(self, replica: ReplicaId) -> str:
        """Return the prefix of a replica's lines."""
        prefix = self._cache.get(replica)
        if prefix is None:
            self.register([replica])
            text = f"{str(replica).ljust(self._width)} {self._bar}"
            prefix = self._cache[replica] = f"{self._style(text, replica_color(replica))} "
        return prefix


def format_log_line(line: LogLine, prefixes: LogPrefixes, *, timestamps: bool = False) -> str:
    """Format a line for people: prefixed, and without control sequences."""
    text = strip_control_sequences(decode_log_line(line))
    stamp = f"{line.time.isoformat(timespec='milliseconds')} " if timestamps else ""
    return f"{prefixes.format(line.replica)}{stamp}{text}".rstrip()


class WarningPrinter:
    """Prints each warning of a job's views once, on stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._printed: set[str] = set()

    def print_new(self, view: JobView) -> None:
        """Print the warnings that were not printed yet."""
        for text in view.warnings:
            if text not in self._printed:
                self._printed.add(text)
                print_warning(text, self._terminal)
