"""``danlu run``."""

from __future__ import annotations

import sys
from typing import Any

import click

from danlu.cli.options import file_option, progress_option, quiet_options
from danlu.cli.session import session

__all__ = ["command"]

#: What shells, env and docker give when they fail before the program starts.
_BEFORE_START = 125


class _Run(click.Command):
    """All failures of danlu's own, wrong usage too, give 125: other codes are the program's."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> click.Context:
        """As click does, after choosing the exit code."""
        if parent is not None:
            session(parent).failure_code = _BEFORE_START
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    name="run",
    cls=_Run,
    short_help="Run one command in the environment, with the project mounted.",
    context_settings={"allow_interspersed_args": False},
)
@file_option
@click.option(
    "--image",
    default="",
    metavar="REF",
    help="Run it in this image of the store instead, with the current directory mounted.",
)
@click.option(
    "-v",
    "--volume",
    "volumes",
    multiple=True,
    metavar="SRC:DST[:ro]",
    help="Show a file or directory of this machine at DST. Repeatable.",
)
@click.option(
    "-e",
    "--env",
    "environment",
    multiple=True,
    metavar="K=V",
    help="Set a variable; K alone takes this process's. Repeatable.",
)
@click.option("--gpus", default="", metavar="N|all|IDS", help="Which GPUs the program sees.")
@click.option("--user", default="", metavar="UID[:GID]", help="Run it as this user.")
@click.option("--frozen", is_flag=True, help="Never resolve: a stale or missing lock is an error.")
@click.option("--offline", is_flag=True, help="Use only what this machine already has.")
@progress_option
@quiet_options
@click.argument("args", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def command(
    file: str | None,
    args: tuple[str, ...],
    image: str,
    volumes: tuple[str, ...],
    environment: tuple[str, ...],
    gpus: str,
    user: str,
    frozen: bool,
    offline: bool,
    progress: str,
) -> int:
    """Run one command in the environment, with the project mounted.

    The environment is built first where it is not yet. The exit code is the program's own, 128+n
    where signal n ended it, 126 where it cannot be executed, 127 where it is not found, and 125
    where danlu failed before it started.
    """
    from danlu.commands.run import run

    this = session()
    if image and file:
        raise click.UsageError("--image and --file exclude each other")
    return run(
        this.directory if image else this.project(file),
        settings=this.settings,
        args=args,
        progress=this.watch(progress),
        image=image,
        volumes=volumes,
        environment=environment,
        gpus=gpus,
        user=user,
        terminal=sys.stdin is not None and sys.stdin.isatty() and this.terminal.out_is_terminal,
        offline=offline,
        frozen=frozen,
    )
