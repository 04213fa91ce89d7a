"""The live tree on a terminal: drawn ten times a second, gone when the build is over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from danlu.cli.progress.board import Board, Row
from danlu.cli.progress.lines import finished_line, label
from danlu.cli.terminal import Terminal, clean
from danlu.graph.progress import Ended, Event, Finished, Log

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live as RichLive

__all__ = ["Live"]

_INTERVAL = 0.1

#: Seconds before anything is drawn: a build in which nothing changed ends before, and shows
#: nothing, starts no thread that draws and imports no rich.
_PATIENCE = 0.25

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
        self._branches: dict[str, str] = {}
        self._origin = 0.0

    def handle(self, event: Event) -> None:
        """Take one event; :class:`Ended` takes the tree off the screen before it returns."""
        if isinstance(event, Ended):
            self.stop()
            return
        with self._lock:
            if self._end.is_set():
                return
            self._board.take(event)
            if self._verbose:
                self._tell(event)
            if self._thread is None and self._board.active:
                self._origin = time.monotonic() - event.time
                self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Take the tree off the screen and show the cursor again."""
        self._end.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)
        with self._lock:
            rest, self._above = self._above, []
        for line in rest:
            self._terminal.say(line)

    def _tell(self, event: Event) -> None:
        """Under ``--verbose``, lines that stay on the screen above the tree."""
        if isinstance(event, Finished):
            self._above.append(finished_line(event))
        elif isinstance(event, Log):
            self._above.append(f"{label('', event.name)} | {clean(event.line)}")

    def _draw(self) -> None:
        if self._end.wait(_PATIENCE):
            return
        from rich.console import Console
        from rich.live import Live as RichLive

        console = Console(
            file=self._terminal.err,
            no_color=not self._terminal.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
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
                self._loop(console, live)
        except OSError:
            self._terminal.err = None  # the terminal has gone; the build goes on
        finally:
            self._terminal.above = None

    def _loop(self, console: Console, live: RichLive) -> None:
        frame = 0
        while not self._end.wait(_INTERVAL):
            with self._lock:
                above, self._above = self._above, []
                width, height = console.size
                now = time.monotonic() - self._origin
                rows = self._board.rows(now, width=width, height=height - 2)
            if above:
                console.print("\n".join(above), soft_wrap=True)
            live.update(self._renderable(rows, width, frame), refresh=True)
            frame += 1

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
            gap = max(1, width - 1 - len(left) - len(row.right)) if row.right else 0
            end = "\n" if index < len(rows) - 1 else ""
            text.append(left, style=row.style)
            text.append(" " * gap + row.right + end, style="dim")
        return text
