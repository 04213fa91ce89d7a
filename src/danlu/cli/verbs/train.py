"""``danlu train``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from danlu.cli.jobs.sweeprun import run as sweep_over
from danlu.cli.jobs.sweeprun import sweep_options, taken
from danlu.cli.messages import warn
from danlu.cli.options import BuildFile, on_option, progress_option, verbosity_options
from danlu.cli.session import Session, session

if TYPE_CHECKING:
    from danlu.commands.train import Planned, TrainOrder
    from danlu.jobs.types import Submission

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

#: The replica types with a flag of their own; ``--replica`` takes all there are.
_TYPES = ("worker", "ps", "master", "chief", "evaluator", "launcher", "scheduler", "server")


def _replica_options(function: F) -> F:
    for name in reversed(_TYPES):
        option = click.option(
            f"--{name}",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"How many replicas of type {name}.",
        )
        function = option(function)
    return function


@click.command(name="train", short_help="Run a training job: a script, or a Kubeflow manifest.")
@click.option(
    "-f", "--file", "file", default="", metavar="JOB.yaml", help="A manifest; - is stdin."
)
@click.option("--framework", default="", metavar="F", help="Default: what the script imports.")
@_replica_options
@click.option(
    "--replica", "others", multiple=True, metavar="TYPE=N", help="Replicas of another type."
)
@click.option("--cpu", default="", metavar="Q", help="Cores of each replica: 2 or 500m.")
@click.option("--memory", default="", metavar="Q", help="Memory of each replica: 512Mi, 4G.")
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="GPUs of each replica.")
@click.option(
    "--env",
    "env",
    type=BuildFile(),
    default="",
    metavar="FILE[:FUNC]",
    help="Run in this environment (default: that of the script's directory).",
)
@click.option("--image", default="", metavar="REF", help="Run in this image.")
@click.option("--host-python", is_flag=True, help="Run as processes of the present Python.")
@click.option("--name", default="", help="The job's name.")
@on_option(exposed=True)
@click.option(
    "--backoff-limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Restarts before the job fails.",
)
@click.option(
    "--restart",
    type=click.Choice(["Always", "OnFailure", "Never", "ExitCode"], case_sensitive=False),
    help="When a replica that ended is run again.",
)
@click.option("--deadline", default="", metavar="TIME", help="The job fails after: 90s, 1h30m.")
@click.option(
    "--clean-pod-policy",
    "clean",
    type=click.Choice(["All", "Running", "None"], case_sensitive=False),
    help="Which replicas' remains are removed at the end.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="SRC:DST[:ro]",
    help="Show a file or directory of this machine to containers at DST. Repeatable.",
)
@click.option("--replace", is_flag=True, help="Forget a finished job of that name first.")
@click.option("--detach", is_flag=True, help="Give the job's name and leave it running.")
@click.option("--dry-run", is_flag=True, help="Only print the manifest that it would be.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["yaml", "json"]), help="How --dry-run prints it."
)
@sweep_options
@click.option("--frozen", is_flag=True, help="Never resolve: a stale or missing lock is an error.")
@click.option("--offline", is_flag=True, help="Use only what this machine already has.")
@progress_option
@verbosity_options
@click.argument("script", required=False, default="", metavar="[SCRIPT]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]")
def command(
    others: tuple[str, ...],
    deadline: str,
    replace: bool,
    detach: bool,
    dry_run: bool,
    form: str | None,
    progress: str,
    **flags: Any,
) -> int:
    """Run a training job: a script, or a Kubeflow manifest.

    A script runs in the environment of its directory (build.envd or build.py), or in the present
    Python; a manifest in the images it names. Lines of all replicas arrive merged on stdout.
    Ctrl-C stops the job, once more kills it; what --detach leaves is looked after by `danlu jobs`.
    The exit code is 1 where the job failed.
    """
    from danlu.commands.train import manifest_text, plan

    this = session()
    this.renderer(progress)  # from here on talk is muted where stderr is for machines
    if form and not dry_run:
        raise click.UsageError("-o says how --dry-run prints; a job writes to stdout what it likes")
    sweep = taken(flags, replace=replace)
    if sweep is not None and (detach or dry_run):
        raise click.UsageError("a sweep is neither detached nor a manifest: run it as it is")
    numbers = {name: flags.pop(name) for name in _TYPES}
    order = _order(this, flags, _numbers(numbers, others), deadline)
    planned = plan(order, settings=this.settings)
    if planned.guessed:
        this.terminal.say(planned.guessed)
    if planned.left_out:
        warn(f"left out of {flags['file']}: {', '.join(planned.left_out)}", this.terminal)
    if dry_run:
        this.terminal.data(manifest_text(planned, form or "yaml").rstrip("\n"))
        return 0
    if planned.place is not None and planned.place.words:
        this.terminal.say(planned.place.words)
    ordered = _ready(this, planned, order, progress)
    this.on = order.on
    if sweep is not None:
        return sweep_over(this, ordered, sweep, progress=progress)
    return _run(this, ordered, progress=progress, replace=replace, detach=detach)


def _order(
    this: Session, flags: Mapping[str, Any], numbers: Mapping[str, int], deadline: str
) -> TrainOrder:
    from danlu.commands.train import TrainOrder

    values = {**flags, "restart": flags["restart"] or "", "clean": flags["clean"] or ""}
    text = sys.stdin.read() if flags["file"] == "-" and sys.stdin is not None else ""
    return TrainOrder(
        directory=this.directory,
        replicas=numbers,
        deadline=_seconds(deadline),
        text=text,
        **values,
    )


def _numbers(given: Mapping[str, int | None], others: tuple[str, ...]) -> dict[str, int]:
    from danlu.commands.jobs import scaling

    return {name: count for name, count in given.items() if count is not None} | scaling(others)


def _seconds(text: str) -> float | None:
    from danlu.util.human import parse_duration

    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise click.UsageError(f"--deadline: {error}") from error


def _ready(this: Session, planned: Planned, order: TrainOrder, progress: str) -> Submission:
    from danlu.commands.train import submission

    ordered = submission(planned, order, settings=this.settings, progress=this.watch(progress))
    this.stop_progress()
    return ordered


def _run(this: Session, ordered: Submission, *, progress: str, replace: bool, detach: bool) -> int:
    import anyio

    from danlu.commands.jobs import forget_finished
    from danlu.commands.places import jobs_on

    jobs = jobs_on(this.on, this.settings)
    if replace:
        anyio.run(forget_finished, jobs, ordered.job.name)
    if detach:
        this.terminal.data(anyio.run(jobs.submit, ordered))
        return 0
    return _foreground(this, ordered, progress)


def _foreground(this: Session, ordered: Submission, progress: str) -> int:
    import anyio

    from danlu.cli.jobs import make
    from danlu.cli.jobs.foreground import run
    from danlu.cli.jobs.report import ended
    from danlu.commands.places import jobs_on

    jobs = jobs_on(this.on, this.settings)
    renderer = make(progress, this.terminal)
    this.terminal.say(f"job {ordered.job.name}")
    try:
        followed = anyio.run(partial(run, jobs, ordered, renderer, terminal=this.terminal))
    finally:
        renderer.stop()
    return ended(this, jobs, followed)
