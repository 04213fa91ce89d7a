"""The commands that a build file names (``runtime.command``), for ``danlu run NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import UsageError
from danlu.sandbox.layer_view import LayerView
from danlu.util.suggest import suggest_name


def resolve_command(args: Sequence[str], runtime: RuntimeSettings) -> tuple[str, ...]:
    """Return the program to run for ``args``, whose first may be the name of a command.

    A named command is run by the shell, with the other arguments appended to it.
    """
    commands = dict(runtime.commands)
    if not args or args[0] not in commands:
        return tuple(args)
    name, *more = args
    command = commands[name].rstrip()
    # Without arguments the command is left alone: it may end with "done" or a comment.
    return ("sh", "-c", f'{command} "$@"' if more else command, name, *more)


def suggest_command(name: str, runtime: RuntimeSettings) -> str:
    """Return a hint for a program that the environment does not have, or an empty string."""
    return suggest_name(name, dict(runtime.commands), what="the named commands are")


def has_program(layers: Sequence[Path], name: str, search_path: str) -> bool:
    """Return whether ``name`` is a path, or a program in one of the image's directories."""
    if "/" in name:
        return True
    view = LayerView(layers)
    try:
        return any(
            view.entry(view.resolve(f"{directory}/{name}")) is not None
            for directory in search_path.split(":")
            if directory
        )
    except UsageError:  # a loop of links: it may be one
        return True
