"""The live table: the job at the bottom of the terminal, log lines above it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from danlu.cli.job_output import LogPrefixes, WarningPrinter, format_log_line
from danlu.cli.job_output.table import Line, render_job_table
from danlu.cli.terminal import Terminal
from danlu.jobs.report import ProgressBarFilter
from danlu.jobs.types import JobView, LogLine

#: Lines that come faster than this are written together.
_REFRESH_SECONDS = 0.1

#: The table is redrawn this often even if nothing changed, because it shows the job's duration.
_IDLE_REFRESH_SECONDS = 0.5


class LiveJobRenderer:
    """Draws the table on stderr; log lines go above it if stdout is a terminal too."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        # Lines above the table are written to stderr, with its styles.
        to_stderr = terminal.out_is_terminal
        self._prefixes = LogPrefixes(
            terminal.style if to_stderr else terminal.style_stdout,
            unicode=terminal.unicode if to_stderr else terminal.out_unicode,
        )
        self._bars = ProgressBarFilter()
        self._view: JobView | None = None
        self._notice = ""
        self._pending_lines: list[str] = []
        self._warnings = WarningPrinter(terminal)
        self._last_drawn = 0.0
        self._dirty = False
        self._console: Console | None = None
        self._live: Live | None = None

    def view(self, view: JobView) -> None:
        """Draw the job, soon."""
        self._prefixes.register(replica.id for replica in view.replicas)
        self._view, self._dirty = view, True
        self._warnings.print_new(view)
        self._draw_if_due()

    def line(self, line: LogLine) -> None:
        """Write a line above the table, or to a redirected stdout."""
        self._add_lines(self._bars.feed(line))
        if self._terminal.out_is_terminal:
            self._draw_if_due()

    def _add_lines(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            text = format_log_line(line, self._prefixes)
            if self._terminal.out_is_terminal:
                self._pending_lines.append(text)
            else:
                self._terminal.write_stdout(text)

    def notice(self, text: str) -> None:
        """Draw ``text`` below the table, soon."""
        self._dirty = self._dirty or text != self._notice
        self._notice = text

    def tick(self) -> None:
        """Draw what is pending; the table alone less often."""
        pending = bool(self._pending_lines) or self._dirty
        self._draw_if_due(_REFRESH_SECONDS if pending else _IDLE_REFRESH_SECONDS)

    def stop(self) -> None:
        """Remove the table and write pending lines."""
        self._stop_live()
        self._add_lines(self._bars.flush())
        self._terminal.write_above = None
        self._write_pending_lines()

    def _draw_if_due(self, interval: float = _REFRESH_SECONDS) -> None:
        now = time.monotonic()
        if now - self._last_drawn >= interval and self._view is not None:
            self._last_drawn, self._dirty = now, False
            self._draw_table(self._view)

    def _draw_table(self, view: JobView) -> None:
        if self._pending_lines:
            # rich parses and measures every line that it prints above a Live: too slow for
            # programs that write ten thousand lines a second.
            self._stop_live()
            self._write_pending_lines()
        if self._live is None:
            self._live = self._start_live()
        width, height = self._live.console.size
        lines = render_job_table(
            view,
            now=datetime.now(UTC),
            width=width,
            height=max(3, height // 2),
            unicode=self._terminal.unicode,
            notice=self._notice,
        )
        self._live.update(_to_rich_text(lines), refresh=True)

    def _start_live(self) -> Live:
        if self._console is None:
            self._console = Console(
                file=self._terminal.err,
                no_color=not self._terminal.color,
                highlight=False,
                markup=False,
                emoji=False,
                legacy_windows=False,
            )
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        self._terminal.write_above = self._pending_lines.append
        return live

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _write_pending_lines(self) -> None:
        """Write pending lines while no table is drawn below them."""
        # Cleared in place: the terminal's `write_above` appends to this very list.
        lines, write_above = self._pending_lines[:], self._terminal.write_above
        self._pending_lines.clear()
        if lines:
            self._terminal.write_above = None
            self._terminal.write_stderr("\n".join(lines))
            self._terminal.write_above = write_above


def _to_rich_text(lines: list[Line]) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for index, line in enumerate(lines):
        if index:
            text.append("\n")
        for part in line:
            text.append(part.text, style=part.style)
    return text
