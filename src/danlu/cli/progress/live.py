"""The live tree on a terminal: redrawn ten times a second, removed when the build ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from danlu.cli.progress.plain import truncate_text
from danlu.cli.terminal import DRAWING_MARGIN, Terminal, text_width
from danlu.graph.progress import Ended, Event, Finished, Log
from danlu.project.build_view_model import (
    MAX_VERTICES_PER_BRANCH,
    BranchState,
    BuildState,
    RunningVertex,
    format_finished,
)
from danlu.util.human import format_duration
from danlu.util.sanitize import strip_control_sequences

# rich takes longer to import than an unchanged build takes: it is imported by the first drawing.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REFRESH_SECONDS = 0.1

#: Seconds before the first drawing. An unchanged build ends earlier, and then no thread is started.
_DELAY_SECONDS = 0.25

#: Seconds without a running vertex after which the tree is removed. Builds have short gaps between
#: vertices, but what follows may be the user's program, which needs the terminal.
_IDLE_SECONDS = 0.03

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPINNER_ASCII = "|/-\\"

_BAR = "━┄"
_BAR_ASCII = "=-"
_BAR_LENGTH = 20
#: Columns for the name before a bar, so that the bars of short names are aligned.
_BAR_NAME_WIDTH = 24
#: Columns for what follows the bar: bytes and time.
_BAR_MARGIN = 44
_MIN_BAR_WIDTH = 80

#: dpkg writes thousands of lines for a base system, which say nothing about a build that works.
_BRANCHES_WITHOUT_LOGS = ("base", "system")


class LiveBuildRenderer:
    """Draws a :class:`BuildState` from a thread, which the first running vertex starts."""

    def __init__(self, terminal: Terminal, *, verbosity: int = 0, title: str = "building") -> None:
        self._terminal = terminal
        self._verbose = verbosity > 0
        self._state = BuildState()
        self._title = title
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending_lines: list[str] = []
        self._idle_since: float | None = None
        self._origin = 0.0

    def handle(self, event: Event) -> None:
        """Update the tree; :class:`Ended` removes it before this returns."""
        if isinstance(event, Ended):
            self.stop()
            return
        with self._lock:
            if self._end.is_set():
                return
            now = time.monotonic()
            self._origin = self._origin or now
            self._state.handle(event, now - self._origin)
            if self._verbose:
                self._print_verbose(event)
            self._update_idle_since(now)
            if self._thread is None and self._state.active:
                self._thread = threading.Thread(
                    target=self._run_display, name="progress", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Remove the tree and show the cursor again."""
        self._end.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)
        for line in self._pop_pending_lines():
            self._terminal.info(line)

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return False: output disappears with the tree."""
        return False

    def _update_idle_since(self, now: float) -> None:
        """Wake the thread if nothing runs any more, or if something runs again."""
        idle = not self._state.active
        if idle != (self._idle_since is not None):
            self._idle_since = now if idle else None
            self._wake.set()

    def _print_verbose(self, event: Event) -> None:
        """Under ``--verbose``, print lines that stay on the screen above the tree."""
        if isinstance(event, Finished):
            self._pending_lines.append(format_finished(event))
        elif isinstance(event, Log):
            self._pending_lines.append(
                f"{strip_control_sequences(event.name)} | {strip_control_sequences(event.line)}"
            )

    def _run_display(self) -> None:
        """Draw while vertices run, and leave the screen alone while none does."""
        if self._end.wait(_DELAY_SECONDS):
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
                if self._is_idle():
                    self._wake.wait()
                    self._wake.clear()
                else:
                    self._draw_until_idle(console)
        except OSError:
            self._terminal.err = None  # the terminal was closed; the build goes on

    def _is_idle(self) -> bool:
        since = self._idle_since
        return since is not None and time.monotonic() - since >= _IDLE_SECONDS

    def _draw_until_idle(self, console: Console) -> None:
        from rich.live import Live

        live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with live:
                self._terminal.write_above = self._add_pending_line
                while not self._end.is_set() and not self._is_idle():
                    self._draw_frame(console, live)
                    self._wake.wait(_REFRESH_SECONDS if self._idle_since is None else _IDLE_SECONDS)
                    self._wake.clear()
        finally:
            self._terminal.write_above = None

    def _draw_frame(self, console: Console, live: Live) -> None:
        with self._lock:
            width, height = console.size
            now = time.monotonic() - self._origin
            rows = render_rows(
                self._state,
                now,
                width=width,
                height=height - 2,
                title=self._title,
                bar=_BAR if self._terminal.unicode else _BAR_ASCII,
            )
        above = self._pop_pending_lines()
        if above:
            console.print("\n".join(above), soft_wrap=True)
        frame = int(now / _REFRESH_SECONDS)
        live.update(self._to_rich_text(rows, width, frame), refresh=True)

    def _pop_pending_lines(self) -> list[str]:
        with self._lock:
            lines, self._pending_lines = self._pending_lines, []
        return lines

    def _add_pending_line(self, line: str) -> None:
        with self._lock:
            self._pending_lines.append(line)

    def _to_rich_text(self, rows: list[ProgressRow], width: int, frame: int) -> RenderableType:
        from rich.text import Text

        spinner = _SPINNER if self._terminal.unicode else _SPINNER_ASCII
        text = Text(no_wrap=True, overflow="crop")
        for index, row in enumerate(rows):
            mark = f"{spinner[frame % len(spinner)]} " if row.spins else ""
            indent = len(row.left) - len(row.left.lstrip())
            left = row.left[:indent] + mark + row.left[indent:]
            room = width - DRAWING_MARGIN - text_width(left) - len(row.right)
            gap = max(1, room) if row.right else 0
            end = "\n" if index < len(rows) - 1 else ""
            text.append(left, style=row.style)
            text.append(" " * gap + row.right + end, style="dim")
        return text


# -- rows


class ProgressRow(msgspec.Struct, frozen=True):
    """A line of the tree: left part, right part (the time), and the style of the whole."""

    left: str
    right: str = ""
    style: str = ""
    spins: bool = False


def render_rows(
    state: BuildState,
    now: float,
    *,
    width: int,
    height: int,
    title: str = "building",
    bar: str = _BAR,
) -> list[ProgressRow]:
    """Render a build in at most ``height`` rows; names are cut to fit ``width``.

    ``bar`` has the characters of a progress bar: done, not done.
    """
    rows = [ProgressRow(title, format_duration(now), "bold", spins=True)]
    if state.message:
        rows.append(ProgressRow(f"  {state.message}", style="dim"))
    budget = _RowBudget(max(0, height - len(rows) - len(state.branches)), len(state.running))
    for branch in state.sorted_branches():
        rows += _branch_rows(branch, now, budget, _BarStyle(width, bar))
    return [_fit_row(row, width) for row in rows[: max(1, height)]]


def _branch_rows(
    branch: BranchState, now: float, budget: _RowBudget, bars: _BarStyle
) -> Iterator[ProgressRow]:
    counts = ", ".join(filter(None, (branch.counts, branch.describe_transfers(now))))
    title = f"  {strip_control_sequences(branch.name) or 'image':<8} {counts}".rstrip()
    shows_time = branch.built or branch.running
    elapsed = format_duration(branch.elapsed_seconds(now)) if shows_time else ""
    style = "red" if branch.failed else "" if branch.running else "green"
    yield ProgressRow(title, elapsed, style)
    for index, vertex in enumerate(branch.running_vertices):
        hidden = len(branch.running) - index
        if index == MAX_VERTICES_PER_BRANCH or not budget.take_vertex_row(last=hidden == 1):
            yield ProgressRow(f"    … and {hidden} more", style="dim")
            return
        elapsed = format_duration(now - vertex.started)
        yield ProgressRow(f"    {bars.draw_vertex(vertex)}", elapsed, "cyan", spins=True)
        if branch.name in _BRANCHES_WITHOUT_LOGS:
            continue
        for line in budget.take_log_lines(vertex):
            yield ProgressRow(f"      {line}", style="dim")


class _BarStyle(msgspec.Struct, frozen=True):
    """Draws the progress bars of vertices that transfer, if the terminal is wide enough."""

    width: int
    characters: str

    def draw_vertex(self, vertex: RunningVertex) -> str:
        """Return the vertex's name, aligned with others, a bar, and the bytes."""
        if not vertex.transfer:
            return vertex.name
        if self.width < _MIN_BAR_WIDTH or not vertex.total or not vertex.current:
            return f"{vertex.name}  {vertex.transfer}"
        done, rest = self.characters[0], self.characters[1]
        filled = _BAR_LENGTH * vertex.current // vertex.total
        name = truncate_text(vertex.name, self.width - _BAR_LENGTH - _BAR_MARGIN)
        name += " " * max(0, _BAR_NAME_WIDTH - text_width(name))
        return f"{name}  {done * filled}{rest * (_BAR_LENGTH - filled)}  {vertex.transfer}"


class _RowBudget:
    """The rows that are left for running vertices and their log lines."""

    def __init__(self, rows: int, running: int) -> None:
        self._rows = rows
        self._spare = max(0, rows - running)
        self._per_vertex = max(1, self._spare // running) if running else 0

    def take_vertex_row(self, *, last: bool) -> bool:
        """Take a row for a vertex; the last row is kept for the number of hidden ones."""
        if self._rows < (1 if last else 2):
            return False
        self._rows -= 1
        return True

    def take_log_lines(self, vertex: RunningVertex) -> list[str]:
        """Take rows for the last log lines of a vertex."""
        count = min(self._per_vertex, self._spare, len(vertex.lines))
        self._spare -= count
        self._rows -= count
        return list(vertex.lines)[len(vertex.lines) - count :]


def _fit_row(row: ProgressRow, width: int) -> ProgressRow:
    """Cut the left part of a row so that the right part fits behind it."""
    mark = 2 if row.spins else 0
    room = width - DRAWING_MARGIN - mark - (len(row.right) + 1 if row.right else 0)
    return ProgressRow(truncate_text(row.left, max(8, room)), row.right, row.style, row.spins)
