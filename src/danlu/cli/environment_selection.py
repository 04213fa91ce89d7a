"""Which environment a command is about: the named one, or that of the current project."""

from __future__ import annotations

from pathlib import Path

from danlu.cli.session import Session
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.environments.manage import (
    default_name,
    find_context_name,
    find_environment,
    find_own_environment,
    is_in_context,
)
from danlu.errors import StoreError, UsageError
from danlu.project.project import Project


def select_default_name(run: Session) -> str:
    """Return the name that the environment of the current directory has."""
    return default_name(_find_target(run))


def _find_target(run: Session) -> Project | Path:
    try:
        return run.open_project(None)
    except UsageError:
        return run.directory  # `danlu up --image` needs no build file


def select_environment(run: Session, name: str) -> EnvironmentDirectory:
    """Return the environment called ``name``; if empty, that of the current directory.

    Raises :class:`~danlu.errors.UsageError` if it does not exist, or if it is in another context
    than that of ``--on``.
    """
    if name:
        environment = find_environment(name, run.paths)
    else:
        environment = find_own_environment(_find_target(run), run.paths)
    if run.on:
        _check_context(environment, run)
    return environment


def _check_context(environment: EnvironmentDirectory, run: Session) -> None:
    try:
        spec = environment.read_spec()
    except StoreError:
        return  # a damaged one has no context, and can be removed
    if not is_in_context(spec, run.named_context, run.paths):
        place = find_context_name(spec)
        raise UsageError(
            f"environment {environment.name} is not in context {run.on}",
            hint=f"it is in context {place}: leave out --on, or use `--on {place}`",
        )
