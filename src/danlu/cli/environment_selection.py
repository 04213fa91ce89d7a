"""Which environment a command is about: the named one, or that of the current project."""

from __future__ import annotations

from danlu.cli.session import Session
from danlu.commands.environments.manage import default_name, find_environment
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.errors import UsageError


def select_default_name(run: Session) -> str:
    """Return the name that the environment of the current directory has."""
    try:
        return default_name(run.open_project(None))
    except UsageError:
        # `danlu up --image` needs no build file.
        return default_name(run.directory)


def select_environment(run: Session, name: str) -> EnvironmentDirectory:
    """Return the environment called ``name``; if empty, that of the current directory.

    Raises :class:`~danlu.errors.UsageError` if it does not exist.
    """
    if name:
        return find_environment(name, run.paths)
    try:
        return find_environment(default_name(run.open_project(None)), run.paths)
    except UsageError:
        # `danlu up --image` needs no build file.
        environment = EnvironmentDirectory(run.paths.environments / default_name(run.directory))
        if environment.exists():
            return environment
        raise UsageError(
            f"no environment of {run.directory} found",
            hint="name one that `danlu ps` lists, or start one with `danlu up`",
        ) from None
