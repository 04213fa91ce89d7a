"""``danlu operator run``."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.operator.common import flag_options, ignored_options

__all__ = ["command"]

_LEVELS = (logging.INFO, logging.DEBUG)


@click.command(name="run", short_help="Run the operator until it is stopped.")
@flag_options(environ=True)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Which cluster [default: $KUBECONFIG, else the pod's own, else ~/.kube/config].",
)
@click.option("--context", default="", metavar="NAME", help="Which context of the kubeconfig.")
@ignored_options
@verbosity_options
def command(kubeconfig: Path | None, context: str, **flags: Any) -> None:
    """Run the operator until it is stopped by SIGTERM or Ctrl-C.

    In a cluster it uses its service account, elsewhere a kubeconfig. Flags that Kubeflow's
    training operator has are called as there.
    """
    from danlu.commands.operator import run, settings_of

    settings = settings_of(flags)
    _log_to_stderr()
    run(settings, kubeconfig=kubeconfig, context=context)


def _log_to_stderr() -> None:
    """Let the operator's log go where a cluster collects it; less with -q, more with -v."""
    found = session()
    level = _LEVELS[min(found.verbosity, len(_LEVELS) - 1)]
    form = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler(found.terminal.err)
    handler.setFormatter(form)
    logger = logging.getLogger("danlu")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if found.terminal.quiet else level)
