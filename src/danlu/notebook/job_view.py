"""Views of a job: a live display in a notebook's cell, or lines on a terminal."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from danlu.graph.progress import Event
from danlu.jobs.report import ProgressBarFilter, decode_line
from danlu.jobs.types import JobView, LogLine
from danlu.notebook.build_view import BuildTracker, format_build_event
from danlu.notebook.display_reader import DisplayReader
from danlu.submission.job_view_model import JobSnapshot, OutputLine, elapsed_seconds
from danlu.submission.metric_charts import MetricHistory
from danlu.training.types import ReplicaId
from danlu.util.sanitize import strip_control_sequences

#: How many log lines to show by default.
DEFAULT_LINES = 200

#: Seconds between two redraws, and between redraws that only update the elapsed time.
_DRAW_INTERVAL, _IDLE_INTERVAL = 0.25, 1.0

#: Idle redraws become less frequent the longer a job runs: by one interval per minute.
_IDLE_BACKOFF_SECONDS = 60.0

_MAX_IDLE_INTERVAL = 10.0

#: How much of a log line to process.
_MAX_LINE_BYTES = 4096


class CellOutput:
    """An output of a cell that can be replaced (by its display ID).

    ``publisher`` is IPython's display publisher.
    """

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._transient = {"display_id": f"danlu-{uuid.uuid4().hex}"}
        self._shown = False

    def show(self, data: dict[str, str]) -> None:
        """Show ``data`` (by MIME type) in place of what was shown before."""
        update, self._shown = self._shown, True
        self._publisher.publish(data=data, metadata={}, transient=self._transient, update=update)


class LiveJobView:
    """Passes snapshots of a job to ``draw``, a few times a second.

    Log lines are kept as bytes and decoded only when they are drawn, so that a job that writes a
    hundred thousand lines a second costs little. ``logs`` returns the directory of a job's logs,
    ``place`` is the notebook's directory, which the Jupyter server serves. ``displays`` shows what
    rank 0 displays.
    """

    newest = True

    def __init__(
        self,
        draw: Callable[[JobSnapshot], object],
        *,
        lines: int | None = None,
        logs: Callable[[str], Path] | None = None,
        place: Path | None = None,
        displays: DisplayReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw_snapshot = draw
        self._logs = logs
        self._place = place
        self._displays = displays
        self._clock = clock
        max_lines = DEFAULT_LINES if lines is None else lines
        self._lines: deque[LogLine | OutputLine] = deque(maxlen=max_lines)
        self._output_count = 0
        self._last_numbers: dict[ReplicaId, int] = {}
        self._history = MetricHistory()
        self._build = BuildTracker(clock)
        self._view: JobView | None = None
        self._name = ""
        self._phase = "Preparing"
        self._summary = ""
        self._notes: dict[str, None] = {}
        self._began = clock()
        self._drawn = float("-inf")
        self._changed = True

    def phase(self, state: str, *, name: str = "") -> None:
        """Show the current step immediately."""
        self._phase, self._name = state, name or self._name
        built = self._build.reset()
        if built:
            self.add_output("build", built)
        self._draw()

    def build_event(self, event: Event) -> None:
        """Show an event of the build before the job."""
        self._build.handle(event)
        self._changed = True

    def note(self, text: str) -> None:
        """Show a note for the rest of the job."""
        self._notes[text] = None
        self._changed = True

    def add_output(self, source: str, text: str) -> None:
        """Show a line of output of a program that prepares the job."""
        self._output_count += 1
        self._lines.append(OutputLine(source, strip_control_sequences(text)))
        self._changed = True

    def line(self, line: LogLine) -> None:
        """Handle a log line of a replica."""
        self._last_numbers[line.replica] = line.number
        if self._lines and line.overwrites(self._lines[-1]):
            self._lines.pop()
        self._lines.append(line)
        self._changed = True

    def view(self, view: JobView) -> None:
        """Handle a change of the job."""
        self._view, self._name, self._changed = view, view.name, True
        # While it is being stopped, show that rather than the state it is still in.
        if self._phase != "Stopping":
            self._phase = view.state
        for warning in view.warnings:
            self._notes[warning] = None
        progress = view.progress
        if progress is not None and progress.metrics:
            began = view.created or progress.updated or datetime.now(UTC)
            self._history.update(progress, began.timestamp())
        self.tick()

    def tick(self) -> None:
        """Redraw if something changed or the elapsed time is out of date."""
        now = self._clock()
        idle = _IDLE_INTERVAL * max(1.0, (now - self._began) / _IDLE_BACKOFF_SECONDS)
        interval = _DRAW_INTERVAL if self._changed else min(idle, _MAX_IDLE_INTERVAL)
        if now - self._drawn >= interval and not self._summary:
            self._draw()

    def finish(self, state: str, message: str) -> None:
        """Show the final state."""
        self._phase, self._summary = state, message
        self._draw()

    def _draw(self) -> None:
        self._drawn, self._changed = self._clock(), False
        self._draw_snapshot(self.snapshot())
        if self._displays is not None and self._view is not None and self._view.where == "local":
            self._displays.show_new(self._view.name, everything=bool(self._summary))

    def snapshot(self) -> JobSnapshot:
        """Return the current state of the view."""
        view = self._view
        is_local = view is not None and view.where == "local"
        logs = self._logs(self._name) if self._logs is not None and is_local else None
        return JobSnapshot(
            name=self._name or "cell",
            kind=view.kind if view is not None else "",
            state=self._phase,
            seconds=(
                elapsed_seconds(view, now=datetime.now(UTC))
                if view is not None
                else self._clock() - self._began
            ),
            replicas=view.replicas if view is not None else (),
            progress=view.progress if view is not None else None,
            series=self._history.series(),
            build=self._build.rows(),
            lines=tuple(output_line(line) for line in self._lines),
            # Lines of a replica are numbered from 0.
            written=self._output_count + sum(self._last_numbers.values()) + len(self._last_numbers),
            notes=tuple(self._notes),
            summary=self._summary,
            logs="" if logs is None else str(logs),
            links={} if logs is None else log_links(logs, self._place),
        )


def output_line(line: LogLine | OutputLine) -> OutputLine:
    """Decode a log line, without its control sequences."""
    if isinstance(line, OutputLine):
        return line
    data = line.data
    if len(data) > _MAX_LINE_BYTES:
        # A line with carriage returns was overwritten in place: its end is what was visible last.
        data = data[-_MAX_LINE_BYTES:] if b"\r" in data else data[:_MAX_LINE_BYTES]
    return OutputLine(str(line.replica), strip_control_sequences(decode_line(data)))


def log_links(logs: Path, place: Path | None) -> dict[str, str]:
    """Return URLs of the log files in ``logs`` by replica name, relative to the notebook.

    Jupyter serves only files below the notebook's directory, and no hidden ones
    (``ContentsManager.allow_hidden``); others get none.
    """
    if place is None:
        return {}
    directory = os.path.relpath(logs, place)
    if any(part.startswith(".") for part in directory.split(os.sep)):
        return {}
    return {
        path.stem: quote(f"{directory}/{path.name}")
        for path in sorted(logs.glob("*.log"))
        if path.is_file()
    }


class TerminalJobView:
    """Writes log lines and changes of the job's state, for IPython in a terminal."""

    newest = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._name = ""
        self._state = ""
        self._notes: set[str] = set()
        self._waiting: list[str] = []
        self._bars = ProgressBarFilter()

    def phase(self, state: str, *, name: str = "") -> None:
        """Write the current step."""
        self._name = name or self._name
        self._add_state(state)

    def add_output(self, source: str, text: str) -> None:
        """Write a line of output of a program that prepares the job."""
        self._waiting.append(f"{source} │ {strip_control_sequences(text)}")

    def build_event(self, event: Event) -> None:
        """Write a line about an event of the build before the job, if it is worth one."""
        text = format_build_event(event)
        if text:
            self.add_output("build", text)

    def note(self, text: str) -> None:
        """Write a note, once."""
        if text not in self._notes:
            self._notes.add(text)
            self._waiting.append(f"! {strip_control_sequences(text)}")

    def view(self, view: JobView) -> None:
        """Write new warnings and the state if it changed."""
        for warning in view.warnings:
            self.note(warning)
        self._add_state(view.state)

    def line(self, line: LogLine) -> None:
        """Write a log line of a replica."""
        self._add_lines(self._bars.feed(line))

    def _add_lines(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            text = strip_control_sequences(decode_line(line.data))
            self._waiting.append(f"{line.replica} │ {text}".rstrip())

    def tick(self) -> None:
        """Write the waiting lines."""
        lines, self._waiting = self._waiting, []
        if lines:
            # Not bound earlier: IPython replaces sys.stdout.
            print("\n".join(lines), file=self._out or sys.stdout, flush=True)

    def finish(self, state: str, message: str) -> None:
        """Write the final message."""
        self._add_lines(self._bars.flush())
        self._waiting.append(message)
        self.tick()

    def _add_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._waiting.append(f"{self._name or 'cell'}: {state}")
