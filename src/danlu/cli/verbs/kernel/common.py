"""What the subcommands of ``danlu kernel`` share: where kernels are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["chosen", "place_options"]

F = TypeVar("F", bound=Callable[..., Any])


def place_options(verb: str) -> Callable[[F], F]:
    """``--user``, ``--prefix`` and ``--sys-prefix``."""

    def add(function: F) -> F:
        for name, text in (
            ("--sys-prefix", f"{verb} this Python's own environment."),
            ("--user", f"{verb} the user's own directory."),
        ):
            function = click.option(name, is_flag=True, help=text)(function)
        return click.option(
            "--prefix",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help=f"{verb} PATH/share/jupyter.",
        )(function)

    return add


def chosen(*, user: bool, prefix: Path | None, sys_prefix: bool) -> Path | None:
    """The one place that was asked for, or none."""
    from danlu.notebook.kernelspec import below, user_base

    if user + sys_prefix + (prefix is not None) > 1:
        raise click.UsageError("--user, --prefix and --sys-prefix exclude one another")
    if sys_prefix:
        return below(Path(sys.prefix))
    if prefix is not None:
        return below(prefix)
    return user_base() if user else None
