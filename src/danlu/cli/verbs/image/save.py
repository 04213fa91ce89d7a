"""``danlu image save``."""

from __future__ import annotations

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

__all__ = ["command"]


@click.command(name="save", short_help="Write an image to a file or directory.")
@image_argument()
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="PATH|type=TYPE,dest=PATH",
    help="Where to: type=docker is a file that `docker load` reads, type=oci an OCI layout. A "
    "PATH alone is a file where it ends in .tar, else a layout.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="How layers of a layout are compressed.",
)
@verbosity_options
def command(image: str, output: str, compression: str) -> None:
    """Write an image to a file or directory."""
    from danlu.commands.export import write_output
    from danlu.commands.images import find_image

    run = session()
    if "dest=" not in output:
        kind = "docker" if output.endswith(".tar") else "oci"
        output = f"type={kind},dest={output}"
    with opened_store(run, as_root=True) as store, store.lease():
        found = find_image(store, image)
        names = [image] if image in found.names else list(found.names)
        digest, place = write_output(store, found, output, names=names, compression=compression)
    run.terminal.say(f"wrote {place}")
    if digest:
        run.terminal.say(f"manifest {digest}")
