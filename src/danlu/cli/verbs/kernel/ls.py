"""``danlu kernel ls``."""

from __future__ import annotations

import click

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session

__all__ = ["command"]


@click.command(name="ls", short_help="List the kernels of danlu that Jupyter offers.")
@format_option()
@verbosity_options
def command(form: str) -> None:
    """List the kernels of danlu that Jupyter offers.

    With -q only their names. One whose Python is gone cannot start.
    """
    from danlu.cli.output import print_json, print_table
    from danlu.notebook.kernelspec import bases, check_extra, installed

    check_extra()
    run = session()
    found = installed(bases())
    if form == "json":
        rows = [
            {
                "name": one.name,
                "display_name": one.display_name,
                "python": one.python,
                "directory": str(one.directory),
                "ready": one.ready,
            }
            for one in found
        ]
        print_json(rows, run.terminal)
    elif run.quiet:
        for one in found:
            run.terminal.data(one.name)
    else:
        head = ("NAME", "SHOWN AS", "PYTHON", "DIRECTORY")
        table = [
            (o.name, o.display_name, o.python + ("" if o.ready else " (gone)"), str(o.directory))
            for o in found
        ]
        print_table(head, table, run.terminal)
