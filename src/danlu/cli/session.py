"""One run of danlu: its terminal, its log, the user's settings, how talkative it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.logs import RunLog
from danlu.cli.terminal import Terminal
from danlu.errors import OutsideError, UsageError
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.cli.progress import Renderer
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.graph.progress import Event

__all__ = ["Session", "session"]


class Session:
    """What commands are given by the program around them."""

    def __init__(self, arguments: Sequence[str], *, terminal: Terminal | None = None) -> None:
        self.arguments = tuple(arguments)
        self.terminal = terminal or Terminal()
        self.paths = Paths.of()
        self.log = RunLog(self.paths.logs, arguments)
        self.verbosity = 0
        self.progress = "auto"
        #: Where jobs are (``--on``).
        self.on = ""
        #: The exit code of danlu's own failures where it is not the error's (125 of ``run``).
        self.failure_code: int | None = None
        #: Where the files that errors name are.
        self.project_directory: Path | None = None
        self._renderer: Renderer | None = None

    @property
    def quiet(self) -> bool:
        """Whether only errors and data are to be written."""
        return self.terminal.quiet

    @cached_property
    def settings(self) -> Settings:
        """The user's paths and configuration; raises :class:`UsageError` where it is wrong."""
        from danlu.commands.settings import load_settings

        return load_settings(self.paths)

    @property
    def directory(self) -> Path:
        """The current directory, as the user named it where that is still right."""
        try:
            here = os.getcwd()
        except OSError as error:
            raise OutsideError(
                f"the current directory cannot be read: {error.strerror}",
                hint="it may have been removed; `cd` somewhere that exists",
            ) from error
        return Path(here)

    def project(self, file: str | None) -> Project:
        """The project that ``-f`` names, or that of the current directory."""
        from danlu.commands.project import Project

        found = Project.open(file, directory=self.directory)
        self.project_directory = found.directory
        return found

    def renderer(self, kind: str | None = None) -> Renderer:
        """The progress renderer of this run; made once, stopped by :meth:`close`."""
        if self._renderer is None:
            from danlu.cli.progress import make

            if kind is not None:
                self.progress = kind
            self.terminal.mute = self.progress == "json"
            chosen = "quiet" if self.quiet and self.progress == "auto" else self.progress
            self._renderer = make(chosen, self.terminal, verbosity=self.verbosity)
        return self._renderer

    def watch(self, kind: str) -> Callable[[Event], None]:
        """What a builder is given: shows each event and writes it to the log."""
        renderer = self.renderer(kind)

        def notice(event: Event) -> None:
            renderer.handle(event)
            self._record(event)

        return notice

    def stop_progress(self) -> None:
        """Take progress off the screen, so that other words can follow."""
        if self._renderer is not None:
            self._renderer.stop()

    def close(self) -> None:
        """End the run's progress and its log."""
        self.stop_progress()
        self.log.close()

    def _record(self, event: Event) -> None:
        from danlu.cli.progress.lines import log_line

        line = log_line(event)
        if line is not None:
            self.log.write(line)


def session(context: click.Context | None = None) -> Session:
    """The run that the current command belongs to."""
    found: Any = (context or click.get_current_context()).find_object(Session)
    if found is None:  # a command used without the program around it
        raise UsageError("this command needs danlu's program around it")
    assert isinstance(found, Session)
    return found
