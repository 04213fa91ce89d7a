"""Which environment a command is about: the named one, or that of the current project."""

from __future__ import annotations

from danlu.cli.session import Session
from danlu.commands.environments.manage import default_name, find_environment
from danlu.engine.environment_directory import EnvironmentDirectory


def select_environment(run: Session, name: str) -> EnvironmentDirectory:
    """Return the environment called ``name``; if empty, that of the current directory's project.

    Raises :class:`~danlu.errors.UsageError` if it does not exist.
    """
    return find_environment(name or default_name(run.open_project(None)), run.paths)
