"""Commands that run a program of the user and exit with its code."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.groups import DocumentedCommand
from danlu.cli.session import current_session

#: The exit code of shells, env and Docker for a failure before the program started.
_EXIT_NOT_STARTED = 125


class ProgramCommand(DocumentedCommand):
    """Exits with 125 for danlu's own failures, because other codes are the program's."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> click.Context:
        """Choose the exit code before options are parsed, because wrong usage counts too."""
        if parent is not None:
            current_session(parent).failure_code = _EXIT_NOT_STARTED
        return super().make_context(info_name, args, parent, **extra)
