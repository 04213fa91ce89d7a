"""Merged logs: each line with its replica in front, in the replica's own colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from zlib import crc32

from danlu.cli.terminal import clean
from danlu.commands.jobreport import text_of
from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId

__all__ = ["Prefixes", "colour", "rendered"]

_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "red")


def colour(replica: ReplicaId) -> str:
    """The replica's colour: the same in every run, another for its neighbours."""
    return _COLOURS[(crc32(replica.type.lower().encode()) + replica.index) % len(_COLOURS)]


class Prefixes:
    """``worker-0 │ ``: as wide as the widest replica known, so that lines begin below each other.

    ``style`` colours a text where the stream can show colours, ``unicode`` says what else it can.
    """

    def __init__(self, style: Callable[[str, str], str], *, unicode: bool) -> None:
        self._bar = "│" if unicode else "|"
        self._style = style
        self._width = 0
        self._made: dict[ReplicaId, str] = {}

    def know(self, replicas: Iterable[ReplicaId]) -> None:
        """Make room for these."""
        width = max((len(str(one)) for one in replicas), default=0)
        if width > self._width:
            self._width = width
            self._made.clear()

    def of(self, replica: ReplicaId) -> str:
        """The prefix of a replica's lines."""
        made = self._made.get(replica)
        if made is None:
            self.know([replica])
            text = f"{str(replica).ljust(self._width)} {self._bar}"
            made = self._made[replica] = f"{self._style(text, colour(replica))} "
        return made


def rendered(line: LogLine, prefixes: Prefixes, *, timestamps: bool = False) -> str:
    """A line of a program as a person reads it: no control sequence of it gets through."""
    text = clean(text_of(line.data))
    stamp = f"{line.time.isoformat(timespec='milliseconds')} " if timestamps else ""
    return f"{prefixes.of(line.replica)}{stamp}{text}".rstrip()
