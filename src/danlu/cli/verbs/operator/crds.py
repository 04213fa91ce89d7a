"""``danlu operator crds``."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.operator.common import kinds_option, yaml_option

__all__ = ["command"]


@click.command(name="crds", short_help="Write the definitions of the kinds of jobs.")
@kinds_option
@yaml_option
@verbosity_options
def command(form: Any, **flags: Any) -> None:
    """Write the definitions of the kinds of jobs, for kubectl apply -f -."""
    from danlu.commands.operator import crds, settings_of, text_of

    session().terminal.data(text_of(crds(settings_of(flags)), form=form))
