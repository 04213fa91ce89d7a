"""``danlu image prune``."""

from __future__ import annotations

import click
import msgspec

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.values import Bytes
from danlu.cli.verbs.image.common import opened_store

__all__ = ["command"]


@click.command(name="prune", short_help="Remove what no image needs.")
@click.option(
    "--keep",
    type=Bytes(),
    metavar="SIZE",
    help="Then remove what was not used for longest, until SIZE (such as 20GB) is left.",
)
@click.option("--all", "everything", is_flag=True, help="The same as --keep 0.")
@format_option()
@verbosity_options
def command(keep: int | None, everything: bool, form: str) -> None:
    """Remove what no image needs, and downloads.

    Without options: what is broken or left over, and what is beyond store_limit of the
    configuration. Images that have a name always stay, and so does what a running build uses;
    nothing that danlu did not make is ever touched. Of SIZE a quarter at most is for downloads
    (package files, wheels, repositories) where layers want the rest.
    """
    from danlu.cli.output import print_json
    from danlu.cli.units import plural, size
    from danlu.commands.prune import prune

    if everything and keep is not None:
        raise click.UsageError("--all is --keep 0, so it cannot go with --keep")
    run = session()
    limit = 0 if everything else _limit(keep, run.settings.config.store_limit)
    with opened_store(run, as_root=True) as store:
        done = prune(store, run.paths, limit)
    if form == "json":
        print_json(msgspec.structs.asdict(done), run.terminal)
        return
    counts = {
        "image": done.images,
        "layer": done.layers,
        "blob": done.blobs,
        "download": done.downloads,
    }
    parts = [plural(count, noun) for noun, count in counts.items() if count]
    what = f" ({', '.join(parts)})" if parts else ""
    busy = "; downloads stay while a build uses them" if done.busy else ""
    run.terminal.say(f"removed {size(done.freed)}{what}, kept {size(done.kept)}{busy}")


def _limit(keep: int | None, configured: str) -> int:
    from danlu.cli.values import parse_bytes

    if keep is not None:
        return keep
    return parse_bytes(configured) if configured else 1 << 62
