"""``--progress json``: one event a line, on stderr, because stdout is for the result."""

from __future__ import annotations

from typing import Any

import msgspec

from danlu.cli.terminal import Terminal
from danlu.graph.progress import Event

__all__ = ["JsonLines", "fields"]


def fields(event: Event) -> dict[str, Any]:
    """An event as JSON fields: ``type`` (started, finished, log, transfer, message), the rest."""
    values: dict[str, Any] = {"type": type(event).__name__.lower()}
    values.update(msgspec.structs.asdict(event))
    if isinstance(values.get("time"), float):
        values["time"] = round(values["time"], 3)
    return values


class JsonLines:
    """Writes each event as one line of JSON."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._stopped = False

    def handle(self, event: Event) -> None:
        """Write the event."""
        if not self._stopped:
            self._terminal.insist(msgspec.json.encode(fields(event)).decode())

    def stop(self) -> None:
        """Drop what comes later."""
        self._stopped = True
