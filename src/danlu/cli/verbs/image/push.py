"""``danlu image push``."""

from __future__ import annotations

import click

from danlu.cli.options import progress_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store, working

__all__ = ["command"]


@click.command(name="push", short_help="Push an image to a registry.")
@image_argument()
@click.argument("destinations", nargs=-1, metavar="[REF]...")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip", "none"]),
    default="gzip",
    show_default=True,
    help="How layers are compressed. zstd is faster; Docker reads it from version 23 on.",
)
@progress_option
@verbosity_options
def command(image: str, destinations: tuple[str, ...], compression: str, progress: str) -> None:
    """Push an image to a registry.

    Under the names REF, or under IMAGE itself where none is given. Only what the registry lacks
    travels. The manifest's digest is written to stdout.
    """
    from danlu.commands.export import push_names
    from danlu.commands.images import find_image, normal_name

    run = session()
    names = [normal_name(one) for one in destinations or (image,)]
    with opened_store(run, as_root=True) as store, store.lease():
        found = find_image(store, image)
        with working(run, progress, f"push {', '.join(names)}") as watch:
            digest = push_names(
                store,
                found,
                names,
                settings=run.settings,
                compression=compression,
                progress=watch,
            )
    run.terminal.data(digest)
    for name in names:
        run.terminal.say(f"pushed {name}")
