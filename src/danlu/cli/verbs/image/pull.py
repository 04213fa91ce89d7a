"""``danlu image pull``."""

from __future__ import annotations

import click

from danlu.cli.options import progress_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import opened_store, working

__all__ = ["command"]


@click.command(name="pull", short_help="Pull an image from a registry.")
@click.argument("reference", metavar="REF")
@click.option("--platform", metavar="OS/ARCH", default="", help="Default: this machine's.")
@progress_option
@verbosity_options
def command(reference: str, platform: str, progress: str) -> None:
    """Pull an image from a registry.

    Every byte is compared with its digest. The image's digest is written to stdout.
    """
    from danlu.commands.imagepull import pull_image

    run = session()
    with (
        opened_store(run, as_root=True) as store,
        working(run, progress, f"pull {reference}") as watch,
    ):
        image = pull_image(
            store, reference, platform=platform, settings=run.settings, progress=watch
        )
    run.terminal.data(image.digest)
    run.terminal.say(f"pulled {', '.join(image.names)}")
