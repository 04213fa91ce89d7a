"""``danlu image history``."""

from __future__ import annotations

import click
import msgspec

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

__all__ = ["command"]


@click.command(name="history", short_help="Show how each layer of an image came to be.")
@image_argument()
@format_option()
@verbosity_options
def command(image: str, form: str) -> None:
    """Show how each layer of an image came to be.

    The topmost layer comes first.
    """
    from danlu.cli.output import print_json, print_table
    from danlu.cli.units import short_digest, size
    from danlu.commands.images import find_image, layers_of

    run = session()
    with opened_store(run) as store:
        layers = layers_of(store, find_image(store, image))[::-1]
    if form == "json":
        print_json([msgspec.structs.asdict(one) for one in layers], run.terminal)
        return
    rows = [
        (
            short_digest(one.diff_id),
            size(one.size) if one.size >= 0 else "gone",
            " ".join(one.created_by.split()),
        )
        for one in layers
    ]
    print_table(("LAYER", "SIZE", "CREATED BY"), rows, run.terminal, right=(1,))
