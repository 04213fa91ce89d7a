"""``--progress json``: each change of a job as one event a line on stderr."""

from __future__ import annotations

import json
from typing import Any

from danlu.cli.jobs.quiet import Quiet
from danlu.cli.terminal import Terminal
from danlu.commands.jobs import fields
from danlu.jobs.types import JobView

__all__ = ["JsonLines"]

#: What changes all the time, and is no news.
_RESTLESS = ("cpu", "memory")


class JsonLines(Quiet):
    """Programs' lines on stdout, an event of type ``job`` on stderr for each change."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._terminal = terminal
        self._last: dict[str, Any] = {}

    def view(self, view: JobView) -> None:
        """Write the job, if something about it is new."""
        super().view(view)
        event = _event(view)
        if event != self._last:
            self._last = event
            self._terminal.insist(json.dumps(event))


def _event(view: JobView) -> dict[str, Any]:
    values = fields(view)
    for one in values["replicas"]:
        for name in _RESTLESS:
            one.pop(name, None)
    kept = ("name", "kind", "state", "replicas", "progress", "warnings")
    return {"type": "job"} | {name: values.get(name) for name in kept}
