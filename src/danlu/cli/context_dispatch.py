"""Run a command in the context that ``--on``, ``DANLU_CONTEXT`` or `danlu context use` says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import click

from danlu.cli.session import Session
from danlu.errors import MachineError, UsageError
from danlu.remote.remote_command import RemoteCommand, needs_linux, runs_remotely

_EXIT_NOT_STARTED = 125
#: Commands whose last arguments are a program and its arguments.
_PROGRAM_COMMANDS = ("exec", "run", "ssh", "train")
_HELP_OPTIONS = ("-h", "--help")
_ON_OPTION = "--on"


def run_in_context(session: Session, arguments: Sequence[str], root: click.Group) -> int | None:
    """Run a command on the machine of its context; return its exit code.

    Returns None if it runs on this machine. Raises :class:`~danlu.errors.DanluError` if the context
    does not exist or the other machine cannot be reached.
    """
    name = next((word for word in arguments if not word.startswith("-")), "")
    # `danlu context` works although the current context does not exist.
    if name not in root.list_commands(click.Context(root)) or name == "context":
        return None
    if _asks_for_help(name, arguments):
        return None
    if name in ("exec", "run", "ssh"):
        session.failure_code = _EXIT_NOT_STARTED
    session.on, arguments = take_on_option(name, arguments, root)
    context_name, context = session.named_context
    if not context.is_remote:
        if sys.platform != "linux" and needs_linux(name):
            raise _unsupported_error(name)
        return None
    if not runs_remotely(name):
        return None
    options = _parse_options(name, arguments[arguments.index(name) + 1 :], root)
    command = RemoteCommand(
        name,
        (context_name, context),
        arguments,
        {word: os.environ.get(word, "") for word in _list_variables(options)},
        session.directory,
        session.settings,
        lambda note: session.terminal.info(f"note: {note}"),
    )
    command.prepare()
    return command.run(terminal=session.terminal.can_attach)


def take_on_option(
    name: str, arguments: Sequence[str], root: click.Group
) -> tuple[str, Sequence[str]]:
    """Return the value of ``--on`` and the arguments without it; empty if it is not among them.

    Raises :class:`UsageError` if the value is missing.
    """
    start = arguments.index(name) + 1
    words = list(arguments[start:])
    if not any(word == _ON_OPTION or word.startswith(f"{_ON_OPTION}=") for word in words):
        return "", arguments
    # One command may leave it to a program.
    if name in _PROGRAM_COMMANDS and not _parse_options(name, words, root).get("on"):
        return "", arguments  # it is the program's
    for index, word in enumerate(words):
        if word == "--":
            break
        if word.startswith(f"{_ON_OPTION}="):
            rest = [*words[:index], *words[index + 1 :]]
            return word.partition("=")[2], [*arguments[:start], *rest]
        if word == _ON_OPTION:
            if index + 1 == len(words):
                raise UsageError("--on requires the name of a context", hint="`danlu context ls`")
            rest = [*words[:index], *words[index + 2 :]]
            return words[index + 1], [*arguments[:start], *rest]
    return "", arguments


def _parse_options(name: str, words: Sequence[str], root: click.Group) -> Mapping[str, Any]:
    """Return the options that the command itself finds, as they are given."""
    command = root.get_command(click.Context(root), name)
    assert command is not None
    context = click.Context(command, info_name=name, **command.context_settings)
    try:
        options, _, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        return {}  # the command reports it
    return options


def _list_variables(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables whose values here are meant: ``-e NAME`` and ``--secret id=NAME``."""
    for text in options.get("environment", ()):
        if "=" not in text:
            yield text
    for text in options.get("secrets", ()):
        fields = dict(field.partition("=")[::2] for field in text.split(","))
        if fields.keys().isdisjoint(("src", "source")):
            yield fields.get("env") or fields.get("id", "")


def _unsupported_error(command: str) -> MachineError:
    return MachineError(
        f"`danlu {command}` needs Linux, which is not the system of this machine",
        hint="with Docker: `danlu context use docker`; or use another machine: "
        "`danlu context create NAME --engine ssh://USER@HOST`",
    )


def _asks_for_help(name: str, arguments: Sequence[str]) -> bool:
    """Return whether the help of a command is wanted, which is the same on all machines."""
    words: Iterable[str] = arguments[arguments.index(name) + 1 :]
    if name in _PROGRAM_COMMANDS:
        # From the first word that is not an option on, options are the program's.
        words = takewhile(lambda word: word.startswith("-") and word != "--", words)
    return any(word in _HELP_OPTIONS for word in words)
