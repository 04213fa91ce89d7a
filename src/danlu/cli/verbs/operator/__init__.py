"""``danlu operator``: one module a subcommand, listed in :mod:`danlu.cli.registry`."""

from __future__ import annotations

import click

from danlu.cli.lazy import LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.registry import OPERATOR_COMMANDS, OPERATOR_SECTIONS

__all__ = ["command"]


@click.command(
    name="operator",
    cls=LazyGroup,
    entries=OPERATOR_COMMANDS,
    sections=OPERATOR_SECTIONS,
    short_help="Run training jobs on a Kubernetes cluster.",
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.pass_context
def command(context: click.Context) -> None:
    """Run training jobs on a Kubernetes cluster.

    The operator runs the jobs of kubeflow.org/v1 that anybody makes there: PyTorchJob, TFJob,
    MPIJob, XGBoostJob, PaddleJob, JAXJob, MXJob.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
