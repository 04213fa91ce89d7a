"""Log lines and warnings of a training job, as all its renderers print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from zlib import crc32

from danlu.cli.error_rendering import print_warning
from danlu.cli.terminal import Terminal
from danlu.commands.jobs.report import decode_log_line
from danlu.jobs.types import JobView, LogLine
from danlu.training.types import ReplicaId
from danlu.util.sanitize import strip_control_sequences

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
