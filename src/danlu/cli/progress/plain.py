"""Plain lines, for CI logs and terminals that cannot move their cursor.

A vertex that takes long is announced when it starts, and every vertex that was built prints a line
when it finishes. Cached vertices are counted, not listed: an unchanged build prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from danlu.cli.terminal import Terminal, text_width
from danlu.graph.progress import LAYER_BRANCH, Event, Finished, Log, Message, Transfer
from danlu.project.build_view_model import (
    BuildState,
    RunningVertex,
    format_finished,
    format_vertex,
)
from danlu.util.sanitize import strip_control_sequences

#: Seconds that a vertex runs before it is announced.
_START_DELAY_SECONDS = 1.0

#: Seconds between two lines about the same transfer.
_TRANSFER_INTERVAL_SECONDS = 10.0

_MAX_PREFIX_WIDTH = 40

#: More than the lines of output that the error of a failed step contains.
_MAX_REMEMBERED_LINES = 200

#: If more vertices than this are due at once, one line announces all of them.
_MAX_ANNOUNCED_VERTICES = 3


class PlainBuildRenderer:
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
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BuildState()
        self._announced: set[str] = set()
        self._last_transfer_line: dict[str, float] = {}
        self._printed_output: deque[str] = deque(maxlen=_MAX_REMEMBERED_LINES)
        self._stopped = False
        self._wrote = False

    def handle(self, event: Event) -> None:
        """Write what the event is worth."""
        with self._lock:
            if self._stopped:
                return
            now = self._clock()
            self._state.handle(event, now)
            match event:
                case Finished():
                    self._handle_finished(event)
                case Log():
                    self._handle_log(event)
                case Transfer():
                    self._handle_transfer(event, now)
                case Message():
                    self._write_line(strip_control_sequences(event.text))
            self._announce_long_running(now)

    def stop(self) -> None:
        """Print how many vertices were cached, if anything was printed at all."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            if self._wrote and not self._verbose:
                for branch in self._state.branches.values():
                    if branch.cached and not self._hides_branch(branch.name):
                        name = strip_control_sequences(branch.name or "other")
                        self._terminal.info(f"[{name}] {branch.cached} cached")

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return whether these lines of output were printed recently."""
        return bool(lines) and all(line in self._printed_output for line in lines)

    def _write_line(self, text: str, *styles: str) -> None:
        self._wrote = True
        self._terminal.info(self._terminal.style(text, *styles))

    def _announce_long_running(self, now: float) -> None:
        due: dict[str, list[RunningVertex]] = {}
        for vertex in self._state.running:
            if self._hides_branch(vertex.branch):
                continue
            if vertex.id not in self._announced and now - vertex.started >= _START_DELAY_SECONDS:
                due.setdefault(vertex.branch, []).append(vertex)
        for branch, vertices in due.items():
            if len(vertices) <= _MAX_ANNOUNCED_VERTICES:
                for vertex in vertices:
                    self._announce_vertex(vertex)
            else:
                self._announced.update(vertex.id for vertex in vertices)
                first = format_vertex(branch, vertices[0].name)
                self._write_line(f"{first} and {len(vertices) - 1} more …", "dim")

    def _announce_vertex(self, vertex: RunningVertex | None) -> None:
        if vertex is not None and vertex.id not in self._announced:
            self._announced.add(vertex.id)
            name = format_vertex(vertex.branch, vertex.name)
            self._write_line(name if name.endswith("…") else f"{name} …", "dim")

    def _handle_finished(self, event: Finished) -> None:
        self._last_transfer_line.pop(event.vertex, None)
        if self._hides_branch(event.branch) and not event.error:
            return
        if event.error:
            self._write_line(format_finished(event), "red")
        elif not event.cached or self._verbose:
            self._write_line(format_finished(event))

    def _handle_log(self, event: Log) -> None:
        """Print output of the user's own steps; that of apt, pip and others only if verbose."""
        vertex = self._state.find_running(event.vertex)
        branch = vertex.branch if vertex else ""
        if self._verbose or branch == "steps":
            self._announce_vertex(vertex)
            prefix = truncate_text(format_vertex(branch, event.name), _MAX_PREFIX_WIDTH)
            self._write_line(f"{prefix} | {strip_control_sequences(event.line)}")
            self._printed_output.append(event.line)

    def _hides_branch(self, branch: str) -> bool:
        """Return whether to omit a branch: the layers of a push, which has its own line."""
        return branch == LAYER_BRANCH and not self._verbose

    def _handle_transfer(self, event: Transfer, now: float) -> None:
        vertex = self._state.find_running(event.vertex)
        if vertex is not None and self._hides_branch(vertex.branch):
            return
        together = self._state.branches[vertex.branch].describe_transfers(now) if vertex else ""
        key = vertex.branch if vertex and together else event.vertex
        last = self._last_transfer_line.setdefault(key, now)
        if now - last < _TRANSFER_INTERVAL_SECONDS:
            return
        self._last_transfer_line[key] = now
        if together:
            self._write_line(f"[{strip_control_sequences(key)}] {together}", "dim")
            return
        self._announce_vertex(vertex)
        if vertex is not None:
            name = format_vertex(vertex.branch, event.name)
            self._write_line(f"{name} … {vertex.transfer}", "dim")


def truncate_text(text: str, room: int) -> str:
    """Cut the end of ``text`` so that it takes at most ``room`` columns."""
    if text_width(text) <= room:
        return text
    cut = text[: max(0, room - 1)]
    while text_width(cut) > room - 1:
        cut = cut[:-1]
    return cut + "…"
