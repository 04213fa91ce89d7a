"""The live tree on a terminal: drawn ten times a second, gone when the build is over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from danlu.cli.progress.board import Board, Row
from danlu.cli.progress.lines import finished_line, label
from danlu.cli.terminal import Terminal, clean, columns
from danlu.graph.progress import Ended, Event, Finished, Log

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live as RichLive

__all__ = ["Live"]

_INTERVAL = 0.1

#: Seconds before anything is drawn: a build in which nothing changed ends before, and shows
#: nothing, starts no thread that draws and imports no rich.
_PATIENCE = 0.25

#: Seconds without anything running after which the tree goes off the screen.
_GRACE = 0.03

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPINNER_ASCII = "|/-\\"


class Live:
    """Draws a :class:`Board` from a thread of its own, begun by the first vertex that runs."""

    def __init__(self, terminal: Terminal, *, verbosity: int = 0) -> None:
        self._terminal = terminal
        self._verbose = verbosity > 0
        self._board = Board()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._above: list[str] = []
        self._wake = threading.Event()
        self._idle_since: float | None = None
        self._origin = 0.0

    def handle(self, event: Event) -> None:
        """Take one event; :class:`Ended` takes the tree off the screen before it returns."""
        if isinstance(event, Ended):
            self.stop()
            return
        with self._lock:
            if self._end.is_set():
                return
            now = time.monotonic()
            self._origin = self._origin or now
            self._board.take(event, now - self._origin)
            if self._verbose:
                self._tell(event)
            self._note_idleness(now)
            if self._thread is None and self._board.active:
                self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Take the tree off the screen and show the cursor again."""
        self._end.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)
        for line in self._taken():
            self._terminal.say(line)

    def _note_idleness(self, now: float) -> None:
        """Wake the thread where nothing runs any more, or where something runs again."""
        idle = not self._board.active
        if idle != (self._idle_since is not None):
            self._idle_since = now if idle else None
            self._wake.set()

    def _tell(self, event: Event) -> None:
        """Under ``--verbose``, lines that stay on the screen above the tree."""
        if isinstance(event, Finished):
            self._above.append(finished_line(event))
        elif isinstance(event, Log):
            self._above.append(f"{label('', event.name)} | {clean(event.line)}")

    def _draw(self) -> None:
        """The thread: draw while something runs, and leave the screen alone while nothing does.

        What follows a build may be a user's program, which wants the terminal for itself.
        """
        if self._end.wait(_PATIENCE):
            return
        from rich.console import Console

        console = Console(
            file=self._terminal.err,
            no_color=not self._terminal.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        try:
            while not self._end.is_set():
                if self._idle():
                    self._wake.wait()
                    self._wake.clear()
                else:
                    self._show(console)
        except OSError:
            self._terminal.err = None  # the terminal has gone; the build goes on

    def _idle(self) -> bool:
        """Whether nothing has run for a little: builds have short gaps between vertices."""
        since = self._idle_since
        return since is not None and time.monotonic() - since >= _GRACE

    def _show(self, console: Console) -> None:
        """Draw until nothing runs or the end has come, then take the drawing off."""
        from rich.live import Live as RichLive

        live = RichLive(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with live:
                self._terminal.above = self._say_above
                while not self._end.is_set() and not self._idle():
                    self._frame(console, live)
                    self._wake.wait(_INTERVAL if self._idle_since is None else _GRACE)
                    self._wake.clear()
        finally:
            self._terminal.above = None

    def _frame(self, console: Console, live: RichLive) -> None:
        with self._lock:
            width, height = console.size
            now = time.monotonic() - self._origin
            rows = self._board.rows(now, width=width, height=height - 2)
        above = self._taken()
        if above:
            console.print("\n".join(above), soft_wrap=True)
        frame = int(now / _INTERVAL)
        live.update(self._renderable(rows, width, frame), refresh=True)

    def _taken(self) -> list[str]:
        with self._lock:
            above, self._above = self._above, []
        return above

    def _say_above(self, line: str) -> None:
        with self._lock:
            self._above.append(line)

    def _renderable(self, rows: list[Row], width: int, frame: int) -> RenderableType:
        from rich.text import Text

        spinner = _SPINNER if self._terminal.unicode else _SPINNER_ASCII
        text = Text(no_wrap=True, overflow="crop")
        for index, row in enumerate(rows):
            mark = f"{spinner[frame % len(spinner)]} " if row.spins else ""
            indent = len(row.left) - len(row.left.lstrip())
            left = row.left[:indent] + mark + row.left[indent:]
            gap = max(1, width - 1 - columns(left) - len(row.right)) if row.right else 0
            end = "\n" if index < len(rows) - 1 else ""
            text.append(left, style=row.style)
            text.append(" " * gap + row.right + end, style="dim")
        return text
