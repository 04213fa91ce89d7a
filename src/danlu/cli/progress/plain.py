"""Plain lines, for logs of CI and for terminals that cannot move their cursor.

A vertex that takes long says that it began, and every vertex that did something says how it
ended. What was cached is counted, not listed: a build in which nothing changed prints nothing.
"""

from __future__ import annotations

import threading

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


class Plain:
    """Writes lines as events come."""

    def __init__(self, terminal: Terminal, *, verbosity: int = 0) -> None:
        self._terminal = terminal
        self._verbose = verbosity > 0
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting: dict[str, Started] = {}
        self._branches: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._cached: dict[str, int] = {}
        self._wrote = False

    def handle(self, event: Event) -> None:
        """Write what the event is worth."""
        with self._lock:
            if self._stopped:
                return
            match event:
                case Started():
                    self._waiting[event.vertex] = event
                    self._branches[event.vertex] = event.branch
                case Finished():
                    self._finished(event)
                case Log():
                    self._log(event)
                case Transfer():
                    self._transfer(event)
                case Message():
                    self._write(clean(event.text))
            self._announce(event.time)

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
        """Tell of the vertices that have been running for a while."""
        for vertex, started in list(self._waiting.items()):
            if now - started.time >= _PATIENCE:
                self._begin(vertex)

    def _begin(self, vertex: str) -> None:
        started = self._waiting.pop(vertex, None)
        if started is not None:
            self._write(f"{label(started.branch, started.name)} …", "dim")

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

    def _transfer(self, event: Transfer) -> None:
        last = self._told.setdefault(event.vertex, event.time)
        if event.time - last < _EVERY:
            return
        self._told[event.vertex] = event.time
        self._begin(event.vertex)
        branch = self._branches.get(event.vertex, "")
        total = f" of {size(event.total)}" if event.total else ""
        self._write(f"{label(branch, event.name)} … {size(event.current)}{total}", "dim")
