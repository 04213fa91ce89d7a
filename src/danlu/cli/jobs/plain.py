"""Plain lines: what changes, once each, for logs of CI and for pipes."""

from __future__ import annotations

from danlu.cli.jobs.lines import Prefixes, rendered
from danlu.cli.jobs.table import measures
from danlu.cli.jobs.warned import Warned
from danlu.cli.terminal import Terminal, clean
from danlu.jobs.types import JobView, LogLine, ReplicaView

__all__ = ["Plain"]

#: Percents between two lines that tell of progress.
_STEP = 10


class Plain:
    """Programs' lines on stdout, each change of a replica as a line on stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._prefixes = Prefixes(terminal.out_style, unicode=terminal.out_unicode)
        self._told: dict[str, str] = {}
        self._warned = Warned(terminal)
        self._percentage = -_STEP

    def view(self, view: JobView) -> None:
        """Tell what is new."""
        self._prefixes.know(one.id for one in view.replicas)
        self._warned.view(view)
        for one in view.replicas:
            self._replica(one)
        self._progress(view)

    def line(self, line: LogLine) -> None:
        """Write it."""
        self._terminal.data(rendered(line, self._prefixes))

    def tick(self) -> None:
        """Nothing moves here."""

    def stop(self) -> None:
        """Nothing stays on the screen."""

    def _replica(self, one: ReplicaView) -> None:
        words = f"{one.id}: {_words(one)}"
        if self._told.get(str(one.id), f"{one.id}: pending") != words:
            self._terminal.say(self._terminal.style(clean(words), "dim"))
        self._told[str(one.id)] = words

    def _progress(self, view: JobView) -> None:
        progress = view.progress
        if progress is None or progress.percentage is None:
            return
        if progress.percentage >= self._percentage + _STEP or progress.percentage == 100:
            if progress.percentage == self._percentage:
                return
            self._percentage = progress.percentage
            self._terminal.say(f"{progress.percentage} %  {measures(progress)}".rstrip())


def _words(one: ReplicaView) -> str:
    """``running``, ``failed (exit code 1)``, ``waiting: for a GPU``, ``running (restart 2)``."""
    from danlu.commands.jobreport import reason

    state = one.state.lower()
    if one.waits:
        return f"{state}: {one.waits}"
    if one.state == "Failed":
        return f"{state} ({reason(one.exit_code, one.reason)})"
    return f"{state} (restart {one.restarts})" if one.restarts else state
