"""One run of the program: its terminal, log, settings and verbosity."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from danlu.cli.run_log import RunLog
from danlu.cli.terminal import Terminal
from danlu.errors import OutsideError, UsageError
from danlu.util.paths import Paths
from danlu.util.urls import mask_values

# Imported by the methods that need them: `danlu --help` has a session, but no project, no
# settings and no progress.
if TYPE_CHECKING:
    from danlu.cli.progress import BuildRenderer
    from danlu.engine.contexts import Context
    from danlu.engine.settings import Settings
    from danlu.graph.progress import Event
    from danlu.project.project import Project


class Session:
    """What commands get from the program."""

    def __init__(self, arguments: Sequence[str], *, terminal: Terminal | None = None) -> None:
        self.arguments = tuple(arguments)
        self.terminal = terminal or Terminal()
        self.paths = Paths.of()
        self.log = RunLog(self.paths.logs, arguments)
        self.verbosity = 0
        #: The value of ``--progress``.
        self.progress = "auto"
        #: The values of ``--set``: parameters of the build function.
        self.build_parameters: tuple[str, ...] = ()
        #: The value of ``--on``; empty if it was not given.
        self.on = ""
        #: Replaces the exit codes of danlu's own errors (125 for ``danlu run``).
        self.failure_code: int | None = None
        #: Source lines of errors are read from files in this directory.
        self.project_directory: Path | None = None
        self._renderer: BuildRenderer | None = None

    @property
    def quiet(self) -> bool:
        """Whether only errors and results are written."""
        return self.terminal.quiet

    @cached_property
    def settings(self) -> Settings:
        """The user's paths and configuration; raises :class:`UsageError` if it is invalid."""
        from danlu.engine.settings import load_settings

        settings = load_settings(self.paths)
        if not self.has_contexts:
            return settings
        from danlu.engine.contexts import apply_context

        name, context = self.named_context
        return apply_context(settings, context, name)

    @property
    def has_contexts(self) -> bool:
        """Whether commands may run in another context than ``local``.

        Finding out which takes time to import.
        """
        if self.on or os.environ.get("DANLU_CONTEXT"):
            return True
        return (self.paths.config / "contexts.json").exists()

    @cached_property
    def named_context(self) -> tuple[str, Context]:
        """The context in which the command runs, with its name.

        Raises :class:`UsageError` if it does not exist.
        """
        from danlu.engine.contexts import find_current_context

        return find_current_context(self.paths, chosen=self.on)

    @property
    def context(self) -> Context:
        """The context in which the command runs; see :attr:`named_context`."""
        return self.named_context[1]

    @property
    def directory(self) -> Path:
        """The current directory."""
        try:
            return Path(os.getcwd())
        except OSError as error:
            raise OutsideError(
                f"cannot read the current directory: {error.strerror}",
                hint="it may have been removed; `cd` to an existing directory",
            ) from error

    def open_project(self, file: str | None) -> Project:
        """Open the project that ``-f`` names, or that of the current directory."""
        from danlu.project.project import Project

        project = Project.open(file, directory=self.directory, settings=self.build_parameters)
        self.project_directory = project.directory
        return project

    def build_renderer(self, kind: str | None = None, *, title: str = "building") -> BuildRenderer:
        """Return the renderer of this run, which is created once and stopped by :meth:`close`.

        ``title`` says what runs, above the live tree.
        """
        if self._renderer is None:
            from danlu.cli.progress import make_build_renderer

            if kind is not None:
                self.progress = kind
            self.terminal.muted = self.progress == "json"
            kind = "quiet" if self.quiet and self.progress == "auto" else self.progress
            self._renderer = make_build_renderer(
                kind, self.terminal, verbosity=self.verbosity, title=title
            )
        return self._renderer

    def start_progress(self, kind: str, *, title: str = "building") -> Callable[[Event], None]:
        """Return the callback for a builder's events, which shows and logs them."""
        from danlu.project.build_view_model import format_log_entry

        renderer = self.build_renderer(kind, title=title)

        def handle_event(event: Event) -> None:
            event = _mask_event(event)
            renderer.handle(event)
            entry = format_log_entry(event)
            if entry is not None:
                self.log.write(entry)

        return handle_event

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return whether these lines of a step's output are on the screen already."""
        return self._renderer is not None and self._renderer.is_on_screen(lines)

    def stop_progress(self) -> None:
        """Remove progress from the screen, so that messages can follow."""
        if self._renderer is not None:
            self._renderer.stop()

    def close(self) -> None:
        """Stop progress and close the log."""
        self.stop_progress()
        self.log.close()


def _mask_event(event: Event) -> Event:
    """Mask the credentials of URLs in an event's texts."""
    texts = {
        name: value
        for name in event.__struct_fields__
        if isinstance(value := getattr(event, name), str) and "@" in value
    }
    if not texts:
        return event
    from msgspec.structs import replace

    return replace(event, **mask_values(texts))


def current_session(context: click.Context | None = None) -> Session:
    """Return the run that the current command belongs to."""
    session = (context or click.get_current_context()).find_object(Session)
    if session is None:
        raise UsageError("this command must be run by danlu's program")
    return session
