"""``danlu image rm``."""

from __future__ import annotations

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

__all__ = ["command"]


@click.command(name="rm", short_help="Remove images or names of images.")
@image_argument("images", nargs=-1, required=True)
@verbosity_options
def command(images: tuple[str, ...]) -> None:
    """Remove images or names of images.

    An image that has other names loses only the one given; by its digest it goes with all of them.
    The room is given back by `danlu image prune`.
    """
    from danlu.cli.units import short_digest
    from danlu.commands.images import remove

    run = session()
    with opened_store(run) as store:
        removed = remove(store, images)
    for name in removed.names:
        run.terminal.say(f"removed name {name}")
    for digest in removed.images:
        run.terminal.say(f"removed image {short_digest(digest)}")
