"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = [
    "FORMATS",
    "BuildFile",
    "file_option",
    "format_option",
    "on_option",
    "progress_option",
    "quiet_options",
    "verbosity_options",
]

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json")


def _more(context: click.Context, option: click.Parameter, value: int) -> None:
    if value and not context.resilient_parsing:
        from danlu.cli.session import session

        session(context).verbosity += value


def _less(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from danlu.cli.session import session

        session(context).terminal.quiet = True


def _verbose(*names: str) -> Callable[[F], F]:
    return click.option(
        *names,
        count=True,
        expose_value=False,
        callback=_more,
        help="Say more: cached vertices, all output, tracebacks.",
    )


_quiet = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_less,
    help="Say nothing but errors.",
)


def verbosity_options(function: F) -> F:
    """``-v`` and ``-q``."""
    return _verbose("-v", "--verbose")(_quiet(function))


def quiet_options(function: F) -> F:
    """``--verbose`` and ``-q``, for commands whose ``-v`` is another option."""
    return _verbose("--verbose")(_quiet(function))


def _place(context: click.Context, option: click.Parameter, value: str) -> None:
    if not context.resilient_parsing:
        from danlu.cli.session import session

        session(context).on = value


def on_option(*, exposed: bool = False) -> Callable[[F], F]:
    """``--on``: the place of jobs, kept in the session, or given to the command."""
    return click.option(
        "--on",
        "on",
        default="",
        metavar="PLACE",
        expose_value=exposed,
        callback=None if exposed else _place,
        help="Where jobs run: local, or kubernetes[:CONTEXT[/NAMESPACE]] (default: local).",
    )


class BuildFile(click.ParamType[str]):
    """``FILE[:FUNC]``, completed as a file name."""

    name = "FILE[:FUNC]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Ask the shell for files."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


file_option = click.option(
    "-f",
    "--file",
    "file",
    type=BuildFile(),
    metavar="FILE[:FUNC]",
    help="The build file, and its function (default: build.envd or build.py, build).",
)

progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "json", "quiet"]),
    default="auto",
    envvar="DANLU_PROGRESS",
    show_default=True,
    help="How progress is shown on stderr; auto is a live tree on a terminal, else plain lines.",
)


def format_option(*formats: str) -> Callable[[F], F]:
    """``--format``, text unless asked otherwise."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats or FORMATS),
        default="text",
        show_default=True,
        help="How the result is written to stdout.",
    )
