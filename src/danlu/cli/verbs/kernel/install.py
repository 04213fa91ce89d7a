"""``danlu kernel install``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from danlu.cli.messages import warn
from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.kernel.common import chosen, place_options

__all__ = ["command"]


@click.command(name="install", short_help="Let Jupyter offer the kernel.")
@place_options("Into")
@click.option("--name", default="danlu", show_default=True, help="The name notebooks store.")
@click.option("--display-name", default="", metavar="TEXT", help="The name people see.")
@click.option("--replace", is_flag=True, help="Also in place of another program's kernel.")
@verbosity_options
def command(name: str, display_name: str, replace: bool, **place: Any) -> None:
    """Let Jupyter offer the kernel, run by this Python.

    Its directory is written to stdout. With --name notebooks that were made with another kernel
    open with this one.
    """
    from danlu.notebook.kernelspec import bases, check_extra, install, user_base

    check_extra()
    run = session()
    base = chosen(**place) or user_base()
    made = install(base, name, display_name=display_name, replace=replace)
    run.terminal.data(str(made))
    if place["user"] or place["prefix"] is None or base in bases():
        run.terminal.say(f"Jupyter now offers the kernel {made.name}")
    else:
        _tell_of_path(base)


def _tell_of_path(base: Path) -> None:
    text = f"this Python's Jupyter does not look in {base}; another may, or JUPYTER_PATH={base}"
    warn(text, session().terminal)
