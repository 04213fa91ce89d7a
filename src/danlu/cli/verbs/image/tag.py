"""``danlu image tag``."""

from __future__ import annotations

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

__all__ = ["command"]


@click.command(name="tag", short_help="Give an image a further name.")
@image_argument()
@click.argument("name", metavar="NAME")
@verbosity_options
def command(image: str, name: str) -> None:
    """Give an image a further name.

    A name that another image has is taken from it.
    """
    from danlu.commands.images import tag

    run = session()
    with opened_store(run) as store:
        normal = tag(store, image, name)
    run.terminal.say(f"named {normal}")
