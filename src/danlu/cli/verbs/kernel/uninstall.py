"""``danlu kernel uninstall``."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.kernel.common import chosen, place_options

__all__ = ["command"]


@click.command(name="uninstall", short_help="Have Jupyter offer the kernel no more.")
@click.argument("name", default="danlu")
@place_options("Only from")
@verbosity_options
def command(name: str, **place: Any) -> None:
    """Have Jupyter offer the kernel no more.

    Without a place it is the first of that name that Jupyter finds. Kernels of other programs are
    left alone.
    """
    from danlu.notebook.kernelspec import bases, check_extra, uninstall

    check_extra()
    base = chosen(**place)
    gone = uninstall(bases() if base is None else (base,), name)
    session().terminal.say(f"removed {gone}")
