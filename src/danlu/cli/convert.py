"""``danlu convert``: a manifest of one generation of Kubeflow as the other one."""

from __future__ import annotations

import sys

import click

from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import command as declare_command
from danlu.cli.job_output.manifest import print_manifest
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.submission.kind_conversion import KINDS
from danlu.submission.options import TrainOptions
from danlu.submission.plan import plan_job
from danlu.util.danlu_program import LOCAL_CONTEXT


@declare_command("convert")
@click.option(
    "--as",
    "kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Kind to write: a TrainJob with its runtime, or one of v1.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    help="Format [default: yaml].",
)
@verbosity_options
@click.argument("files", nargs=-1, required=True, metavar="JOB.yaml [RUNTIME.yaml]…")
def command(kind: str, form: str, files: tuple[str, ...]) -> None:
    """Convert a Kubeflow manifest to a TrainJob, or back.

    Reads a job of kubeflow.org/v1 (PyTorchJob, JAXJob …) or a TrainJob, of which the runtime may be
    a further file; - is stdin. Prints the converted job, with the ConfigMaps and Secrets of the
    file. What the other kind cannot express is listed on stderr and in comments, and the exit code
    is then 1. A job that would do something else is refused with 2.
    """
    run = current_session()
    file, *further = files
    options = TrainOptions(
        directory=run.directory,
        on=LOCAL_CONTEXT,  # nothing is submitted
        file=file,
        further_files=tuple(further),
        text=sys.stdin.read() if file == "-" and sys.stdin is not None else "",
    )
    planned = plan_job(options, settings=run.settings)
    if planned.ignored_objects:
        ignored = ", ".join(planned.ignored_objects)
        print_warning(f"left out, apply them from {file}: {ignored}", run.terminal)
    print_manifest(run, planned, options, kind=kind, form=form)
