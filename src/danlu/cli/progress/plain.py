"""Plain lines, for logs of CI and for terminals that cannot move their cursor.

A vertex that takes long says that it began, and every vertex that did something says how it
ended. What was cached is counted, not listed: a build in which nothing changed prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from danlu.cli.progress.lines import finished_line, label, shorten
from danlu.cli.terminal import Terminal, clean
from danlu.cli.units import size
from danlu.graph.progress import Event, Finished, Log, Message, Started, Transfer

__all__ = ["Plain"]

#: Seconds that a vertex may take before a line says that it began.
_PATIENCE = 1.0

#: Seconds between two lines that tell of one transfer.
_EVERY = 10.0

_PREFIX = 40

#: More vertices than this that are told of at once are told of in one line.
_TOGETHER = 3


class Plain:
    """Writes lines as events come."""

    def __init__(
        self,
        terminal: Terminal,
        *,
        verbosity: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = terminal
        self._verbose = verbosity > 0
        self._lock = threading.Lock()
        self._stopped = False
        self._clock = clock
        self._waiting: dict[str, tuple[float, Started]] = {}
        self._branches: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._cached: dict[str, int] = {}
        self._wrote = False

    def handle(self, event: Event) -> None:
        """Write what the event is worth."""
        with self._lock:
            if self._stopped:
                return
            now = self._clock()
            match event:
                case Started():
                    self._waiting[event.vertex] = (now, event)
                    self._branches[event.vertex] = event.branch
                case Finished():
                    self._finished(event)
                case Log():
                    self._log(event)
                case Transfer():
                    self._transfer(event, now)
                case Message():
                    self._write(clean(event.text))
            self._announce(now)

    def stop(self) -> None:
        """Say how much was cached, where anything was written at all."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            if self._wrote and not self._verbose:
                for branch, count in self._cached.items():
                    self._terminal.say(f"[{clean(branch)}] {count} cached")

    def _write(self, text: str, *styles: str) -> None:
        self._wrote = True
        self._terminal.say(self._terminal.style(text, *styles))

    def _announce(self, now: float) -> None:
        """Tell of the vertices that have been running for a while, of many in one line."""
        due: dict[str, list[Started]] = {}
        for began, started in self._waiting.values():
            if now - began >= _PATIENCE:
                due.setdefault(started.branch, []).append(started)
        for branch, group in due.items():
            if len(group) <= _TOGETHER:
                for started in group:
                    self._begin(started.vertex)
                continue
            for started in group:
                del self._waiting[started.vertex]
            first = label(branch, group[0].name)
            self._write(f"{first} and {len(group) - 1} more …", "dim")

    def _begin(self, vertex: str) -> None:
        _, started = self._waiting.pop(vertex, (0.0, None))
        if started is not None:
            name = label(started.branch, started.name)
            self._write(name if name.endswith("…") else f"{name} …", "dim")

    def _finished(self, event: Finished) -> None:
        self._waiting.pop(event.vertex, None)
        self._told.pop(event.vertex, None)
        if event.error:
            self._write(finished_line(event), "red")
        elif not event.cached or self._verbose:
            self._write(finished_line(event))
        else:
            branch = event.branch or "other"
            self._cached[branch] = self._cached.get(branch, 0) + 1

    def _log(self, event: Log) -> None:
        branch = self._branches.get(event.vertex, "")
        if self._verbose or branch == "steps":
            self._begin(event.vertex)
            name = shorten(label(branch, event.name), _PREFIX)
            self._write(f"{name} | {clean(event.line)}")

    def _transfer(self, event: Transfer, now: float) -> None:
        last = self._told.setdefault(event.vertex, now)
        if now - last < _EVERY:
            return
        self._told[event.vertex] = now
        self._begin(event.vertex)
        branch = self._branches.get(event.vertex, "")
        total = f" of {size(event.total)}" if event.total else ""
        self._write(f"{label(branch, event.name)} … {size(event.current)}{total}", "dim")
