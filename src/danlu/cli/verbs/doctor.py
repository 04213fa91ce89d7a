"""``danlu doctor``."""

from __future__ import annotations

import click
import msgspec

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session

__all__ = ["command"]

_LACKING = 4


@click.command(name="doctor", short_help="Check what this machine has and lacks.")
@format_option()
@verbosity_options
def command(form: str) -> int:
    """Check what this machine has and lacks.

    Exits with 4 where something is missing. Nothing is changed, fetched or sent.
    """
    from danlu.cli.output import print_json
    from danlu.cli.terminal import clean
    from danlu.commands.doctor import examine

    run = session()
    terminal = run.terminal
    checks = examine(run.paths)
    missing = [one for one in checks if not one.ok]
    if form == "json":
        print_json([msgspec.structs.asdict(one) for one in checks], terminal)
        return _LACKING if missing else 0
    width = max(len(one.name) for one in checks)
    for one in checks:
        mark = terminal.out_style("ok  ", "green") if one.ok else terminal.out_style("FAIL", "red")
        terminal.data(f"{mark}  {clean(one.name).ljust(width)}  {clean(one.detail)}".rstrip())
        for line in one.fix.splitlines() if not one.ok else ():
            terminal.data(f"{' ' * (width + 8)}{clean(line)}")
    if missing:
        terminal.say(f"{len(missing)} of {len(checks)} checks failed")
    else:
        terminal.say("this machine has all that danlu needs")
    return _LACKING if missing else 0
