"""Where a job is shown: in a notebook's cell, or line by line at a terminal."""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any, TextIO

from danlu.commands.jobreport import text_of
from danlu.notebook.render import bundle
from danlu.util.plaintext import clean

if TYPE_CHECKING:
    from danlu.jobs.types import JobView, LogLine
    from danlu.notebook.board import Board

__all__ = ["CellScreen", "Output", "TerminalView"]


class CellScreen:
    """One output of a cell, which is replaced by each board (:class:`danlu.notebook.live.Screen`).

    ``publisher`` is IPython's display publisher.
    """

    def __init__(self, publisher: Any) -> None:
        self._output = Output(publisher)

    def draw(self, board: Board) -> None:
        """Show it."""
        self._output.show(bundle(board))


class Output:
    """One output of a cell, by its display id."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._transient = {"display_id": f"danlu-{uuid.uuid4().hex}"}
        self._shown = False

    def show(self, data: dict[str, str]) -> None:
        """Show ``data`` by MIME type in the place of what was shown before."""
        again, self._shown = self._shown, True
        self._publisher.publish(data=data, metadata={}, transient=self._transient, update=again)


class TerminalView:
    """Writes lines as they come, and how the job stands where that changes.

    It is a :class:`danlu.notebook.attend.View`.
    """

    newest = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._name = ""
        self._state = ""
        self._warned: set[str] = set()
        self._waiting: list[str] = []

    def phase(self, state: str, *, name: str = "") -> None:
        """Say it."""
        self._name = name or self._name
        self._tell(state)

    def said(self, who: str, text: str) -> None:
        """Write it."""
        self._waiting.append(f"{who} │ {clean(text)}")

    def note(self, text: str) -> None:
        """Say it once."""
        if text not in self._warned:
            self._warned.add(text)
            self._waiting.append(f"! {clean(text)}")

    def view(self, view: JobView) -> None:
        """Say a new state."""
        for one in view.warnings:
            self.note(one)
        self._tell(view.state)

    def line(self, line: LogLine) -> None:
        """Write it."""
        self._waiting.append(f"{line.replica} │ {clean(text_of(line.data))}".rstrip())

    def tick(self) -> None:
        """Write what waits, together."""
        lines, self._waiting = self._waiting, []
        if lines:
            # Looked up each time: IPython puts others in its place.
            print("\n".join(lines), file=self._out or sys.stdout, flush=True)

    def ended(self, state: str, words: str) -> None:
        """Say it."""
        self._waiting.append(words)
        self.tick()

    def _tell(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._waiting.append(f"{self._name or 'cell'}: {state}")
