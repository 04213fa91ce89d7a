"""What the subcommands of ``danlu operator`` share: the operator's flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from danlu.operator.flags import FLAGS, IGNORED, Flag
from danlu.operator.types import OperatorSettings

__all__ = ["flag_options", "ignored_options", "kinds_option", "yaml_option"]

F = TypeVar("F", bound=Callable[..., Any])
_TYPES = {"number": float, "whole": int, "truth": bool}
_PLAIN = OperatorSettings()


def flag_options(*, without: tuple[str, ...] = (), environ: bool = False) -> Callable[[F], F]:
    """All flags of the operator, in the order of its table; ``environ`` lets variables count."""

    def add(function: F) -> F:
        for flag in reversed(FLAGS):
            if flag.name not in without:
                function = _option(flag, environ=environ)(function)
        return function

    return add


def kinds_option(function: F) -> F:
    """``--enable-scheme`` alone."""
    return _option(next(flag for flag in FLAGS if flag.kind == "kinds"))(function)


def ignored_options(function: F) -> F:
    """Flags of Kubeflow's operator that are taken and do nothing, so that its arguments serve."""
    for name in IGNORED:
        function = click.option(
            name,
            expose_value=False,
            hidden=True,
            is_flag=False,
            flag_value="",
            callback=_ignored,
        )(function)
    return function


yaml_option = click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="How the objects are written to stdout.",
)


def _option(flag: Flag, *, environ: bool = False) -> Callable[[F], F]:
    named: dict[str, Any] = {"help": _help(flag), "metavar": flag.metavar or None}
    if environ and flag.variable:
        named |= {"envvar": flag.variable, "show_envvar": True}
    if flag.kind in ("kinds", "pairs", "urls"):
        named["multiple"] = True
    else:
        named["type"] = _TYPES.get(flag.kind, str)
    if flag.kind == "truth":
        # Go's spelling too: --leader-elect=true.
        named |= {"is_flag": False, "flag_value": "true", "metavar": "[=true|false]"}
    return click.option(flag.name, flag.parameter, **named)


def _help(flag: Flag) -> str:
    default = getattr(_PLAIN, flag.field)
    shown = flag.kind in ("text", "name", "address", "number", "whole") and default not in ("", 0)
    return f"{flag.help} [default: {default}]" if shown else flag.help


def _ignored(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None and not context.resilient_parsing:
        from danlu.cli.messages import warn
        from danlu.cli.session import session

        warn(f"{option.opts[0]} has nothing to set here: it is ignored", session().terminal)
