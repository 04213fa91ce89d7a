"""``danlu image load``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from danlu.cli.options import progress_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import opened_store, working

__all__ = ["command"]


@click.command(name="load", short_help="Read images from a file or directory.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-t", "--tag", "tags", multiple=True, metavar="REF", help="Name the image so.")
@progress_option
@verbosity_options
def command(path: Path, tags: tuple[str, ...], progress: str) -> None:
    """Read images from a file or directory.

    PATH is an archive of `docker save` (- for stdin) or the directory of an OCI layout.
    """
    from danlu.cli.units import short_digest
    from danlu.commands.imageload import load, spooled
    from danlu.commands.images import normal_name
    from danlu.graph.progress import Message

    run = session()
    names = [normal_name(one) for one in tags]
    with (
        opened_store(run, as_root=True) as store,
        tempfile.TemporaryDirectory(dir=store.root) as scratch,
        working(run, progress, f"load {path}") as watch,
    ):
        place = spooled(sys.stdin.buffer, Path(scratch)) if str(path) == "-" else path

        def say(number: int, count: int) -> None:
            watch(Message(f"layer {number} of {count}", 0.0))

        images = load(store, place, names=names, progress=say)
    for one in images:
        digest = short_digest(one.digest)
        run.terminal.say(f"loaded {digest} {', '.join(one.names)}".rstrip())
        if run.quiet:
            run.terminal.data(one.digest)
