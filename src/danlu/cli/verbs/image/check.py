"""``danlu image check``."""

from __future__ import annotations

import click
import msgspec

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session

__all__ = ["command"]

_DAMAGED = 3


@click.command(name="check", short_help="Read the whole store and tell what is damaged.")
@click.option("--repair", is_flag=True, help="Remove what is damaged, so that it is made anew.")
@format_option()
@verbosity_options
def command(repair: bool, form: str) -> int:
    """Read the whole store and tell what is damaged.

    Exits with 3 where something is, unless --repair has removed it. What builds that were killed
    left behind is no damage: it takes room, and the next prune removes it.
    """
    from danlu.cli.output import print_json
    from danlu.cli.terminal import clean
    from danlu.cli.units import plural
    from danlu.sandbox import userns
    from danlu.store import check_store

    run = session()
    userns.enter(run.paths)
    findings = check_store(run.paths.store, repair=repair)
    if form == "json":
        print_json([msgspec.structs.asdict(one) for one in findings], run.terminal)
    else:
        for one in findings:
            state = " (repaired)" if one.repaired else ""
            detail = f": {one.detail}" if one.detail else ""
            run.terminal.data(f"{one.kind} {clean(one.subject)}{clean(detail)}{state}")
    left = [one for one in findings if not one.repaired and not one.harmless]
    if not left and not any(one.repaired for one in findings):
        run.terminal.say("the store is whole")
    elif left and not repair:
        run.terminal.say(f"{plural(len(left), 'finding')}; --repair removes what is damaged")
    return _DAMAGED if left else 0
