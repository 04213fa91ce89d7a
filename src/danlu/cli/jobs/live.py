"""The live table: the job at the bottom of the terminal, what programs write above it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from danlu.cli.jobs.lines import Prefixes, rendered
from danlu.cli.jobs.table import Span, board
from danlu.cli.jobs.warned import Warned
from danlu.cli.terminal import Terminal
from danlu.jobs.types import JobView, LogLine

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live as RichLive
    from rich.text import Text

__all__ = ["Live"]

#: Seconds between two drawings; lines that come faster are written together.
_INTERVAL = 0.1

#: Seconds after which the table is drawn again though nothing is new but the time.
_IDLE_INTERVAL = 0.5


class Live:
    """Draws on stderr; lines go above the table where stdout is the same terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        # Lines go to stderr, above the table, where stdout is a terminal too.
        same = terminal.out_is_terminal
        style = terminal.style if same else terminal.out_style
        self._prefixes = Prefixes(style, unicode=terminal.unicode if same else terminal.out_unicode)
        self._view: JobView | None = None
        self._above: list[str] = []
        self._warned = Warned(terminal)
        self._drawn = 0.0
        self._new = False
        self._console: Console | None = None
        self._live: RichLive | None = None

    def view(self, view: JobView) -> None:
        """Draw the job, soon."""
        self._prefixes.know(one.id for one in view.replicas)
        self._view, self._new = view, True
        self._warned.view(view)
        self._draw_if_due()

    def line(self, line: LogLine) -> None:
        """Write it above the table, or to a stdout that is elsewhere."""
        text = rendered(line, self._prefixes)
        if self._terminal.out_is_terminal:
            self._above.append(text)
            self._draw_if_due()
        else:
            self._terminal.data(text)

    def tick(self) -> None:
        """Draw what waits; the table alone now and then, since time passes."""
        self._draw_if_due(_INTERVAL if self._above or self._new else _IDLE_INTERVAL)

    def stop(self) -> None:
        """Take the table off, and write what waits."""
        self._take_off()
        self._terminal.above = None
        self._write_above()

    def _draw_if_due(self, interval: float = _INTERVAL) -> None:
        now = time.monotonic()
        if now - self._drawn >= interval and self._view is not None:
            self._drawn, self._new = now, False
            self._draw(self._view)

    def _draw(self, view: JobView) -> None:
        if self._above:
            # Not by rich, which would take each of ten thousand lines a second to pieces.
            self._take_off()
            self._write_above()
        if self._live is None:
            self._live = self._put_on()
        width, height = self._live.console.size
        lines = board(
            view,
            now=datetime.now(UTC),
            width=width,
            height=max(3, height // 2),
            unicode=self._terminal.unicode,
        )
        self._live.update(_text(lines), refresh=True)

    def _put_on(self) -> RichLive:
        from rich.console import Console
        from rich.live import Live as RichLive

        if self._console is None:
            self._console = Console(
                file=self._terminal.err,
                no_color=not self._terminal.color,
                highlight=False,
                markup=False,
                emoji=False,
                legacy_windows=False,
            )
        live = RichLive(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        self._terminal.above = self._above.append
        return live

    def _take_off(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _write_above(self) -> None:
        """Write what waits, while no table stands below it."""
        lines, above = self._taken(), self._terminal.above
        if lines:
            self._terminal.above = None
            self._terminal.insist("\n".join(lines))
            self._terminal.above = above

    def _taken(self) -> list[str]:
        # In place: the list itself was handed out as what takes talk.
        lines = self._above[:]
        self._above.clear()
        return lines


def _text(lines: list[list[Span]]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(span.text, style=span.style)
    return text
