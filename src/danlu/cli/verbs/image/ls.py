"""``danlu image ls``."""

from __future__ import annotations

import click

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import opened_store

__all__ = ["command"]


@click.command(name="ls", short_help="List the images of this machine.")
@format_option()
@verbosity_options
def command(form: str) -> None:
    """List the images of this machine.

    With -q only their digests. SIZE counts every layer of an image; images share layers.
    """
    import time

    from danlu.cli.output import print_json, print_table
    from danlu.cli.units import ago, short_digest, size
    from danlu.commands.images import summary_fields

    run = session()
    with opened_store(run) as store:
        fields = [summary_fields(store, one) for one in store.images()]
    if form == "json":
        print_json(fields, run.terminal)
        return
    if run.quiet:
        for one in fields:
            run.terminal.data(one["digest"])
        return
    now = time.time()
    rows = [
        (
            name,
            short_digest(one["digest"]),
            size(one["size"]),
            ago(now - one["created"]),
            one["source"],
        )
        for one in fields
        for name in one["names"] or ("-",)
    ]
    print_table(("NAME", "IMAGE", "SIZE", "CREATED", "FROM"), rows, run.terminal, right=(2,))
