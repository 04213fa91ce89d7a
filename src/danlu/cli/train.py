"""``danlu train``: the options of a job or a sweep, and running it in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import command as declare_command
from danlu.cli.job_output.manifest import print_manifest
from danlu.cli.options import (
    BuildFileParam,
    FrameworkParam,
    frozen_option,
    grace_option,
    offline_option,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.session import Session, current_session
from danlu.engine.container_options import parse_variable
from danlu.errors import UsageError
from danlu.jobs.backends import parse_scaling
from danlu.submission import option_values as convert
from danlu.submission.kind_conversion import KINDS
from danlu.submission.options import (
    JOB_OPTIONS,
    SWEEP_FIELDS,
    JobOption,
    TrainOptions,
    format_option_name,
)
from danlu.submission.plan import plan_job
from danlu.submission.submission import build_submission
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.training.train_job.schema import NAMESPACED_RUNTIME
from danlu.util.human import parse_duration

if TYPE_CHECKING:
    from danlu.sweeps.options import SweepOptions

F = TypeVar("F", bound=Callable[..., Any])

#: Options whose values a shell completes.
_PARAMS: Mapping[str, click.ParamType[Any]] = {
    "framework": FrameworkParam(),
    "env": BuildFileParam(),
}

#: The replica types with an option of their own; ``--replica`` takes those of packages too.
_REPLICA_TYPES = dict.fromkeys(
    format_option_name(type)
    for framework in BUILT_IN_FRAMEWORKS
    for type in framework.replica_types
)


def _add_replica_options(function: F) -> F:
    for name in reversed(_REPLICA_TYPES):
        function = click.option(
            f"--{name}",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"Number of {name} replicas.",
        )(function)
    return function


def _add_job_options(function: F) -> F:
    """Add the flags of the table of options."""
    for option in reversed(JOB_OPTIONS):
        if option.flag:
            function = click.option(
                f"--{option.name}", option.field_name, help=option.help, **_click_settings(option)
            )(function)
    return function


def _click_settings(option: JobOption) -> dict[str, Any]:
    if option.choices:
        return {"type": click.Choice(option.choices, case_sensitive=False)}
    if not option.metavar:
        return {"is_flag": True}
    if option.minimum is not None:
        return {"type": click.IntRange(min=option.minimum), "metavar": option.metavar}
    if option.repeatable or option.name == "env":
        kind = _PARAMS.get(option.name)
        return {"multiple": True, "metavar": option.metavar, "type": kind}
    return {"type": _PARAMS.get(option.name), "default": "", "metavar": option.metavar}


@declare_command("train")
@click.option(
    "-f",
    "--file",
    "manifests",
    multiple=True,
    metavar="JOB.yaml",
    help="Kubeflow manifest; - is stdin. A TrainJob's runtime may be a second one.",
)
@click.option(
    "-m", "--module", "module", default="", metavar="MODULE", help="Run a module, like python -m."
)
@_add_replica_options
@click.option(
    "--replica", "others", multiple=True, metavar="TYPE=N", help="Number of replicas of any type."
)
@_add_job_options
@click.option(
    "-e",
    "environment",
    multiple=True,
    metavar="K=V",
    help="Set a variable (K alone passes its current value). Repeatable.",
)
@on_option
@grace_option()
@click.option(
    "--replace",
    is_flag=True,
    help="First delete a finished job of this name and its earlier runs.",
)
@click.option("--detach", is_flag=True, help="Run in the background and print the job name.")
@click.option("--dry-run", is_flag=True, help="Print the generated manifest and exit.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["yaml", "json", "argo", "katib"]),
    help="Format of --dry-run; argo is a Workflow, katib a sweep's Experiment.",
)
@click.option("--as", "kind", type=click.Choice(KINDS), help="Kind of the manifest of --dry-run.")
@frozen_option
@offline_option
@progress_option
@verbosity_options
@click.argument("script", required=False, default="", metavar="[SCRIPT]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]")
def command(
    replace: bool,
    detach: bool,
    dry_run: bool,
    form: str | None,
    kind: str | None,
    progress: str,
    **flags: Any,
) -> int:
    """Run a training job: script, module or Kubeflow manifest.

    Scripts run in the environment defined next to them (build.envd or build.py), modules in that
    of the current directory, or else in the active Python. Manifests run in the images they
    reference. Logs of all replicas are interleaved on stdout.

    Press Ctrl-C to stop the job, which lets its replicas save (--grace); press it twice to kill
    it. Manage detached jobs with `danlu jobs`. Exits 1 if the job fails.

    A sweep runs a job for each combination of values: --NAME VALUE is appended to the script's
    arguments unless they contain {NAME} as a word or after an =. With --sweep {NAME}=VALUES the
    values are only substituted.
    """
    run = current_session()
    run.build_renderer(progress)  # mutes messages if stderr is for JSON
    if form and not dry_run:
        raise click.UsageError("-o requires --dry-run")
    if kind and not dry_run:
        raise click.UsageError("--as requires --dry-run")
    sweep = _parse_sweep_options(flags, replace=replace)
    if sweep is not None and (detach or (dry_run and form != "katib")):
        raise click.UsageError(
            "--sweep cannot be combined with --detach, and with --dry-run only for -o katib"
        )
    if form == "katib" and sweep is None:
        raise click.UsageError("-o katib requires --sweep")
    options = _parse_train_options(run, flags)
    planned = plan_job(options, settings=run.settings)
    if planned.framework_reason:
        run.terminal.info(planned.framework_reason)
    if planned.ignored_objects:
        ignored = ", ".join(planned.ignored_objects)
        print_warning(f"ignored in {options.file}: {ignored}", run.terminal)
    if sweep is not None and planned.manifests:
        raise UsageError(
            "a sweep cannot change the commands of a TrainJob on a cluster",
            hint="run it on this machine (--on local), or sweep a script",
        )
    for runtime in planned.manifests[:-1]:
        name = f"{runtime['kind']} {runtime['metadata']['name']}"
        created = runtime["kind"] == NAMESPACED_RUNTIME
        text = "is created unless the cluster has the same" if created else "must be in the cluster"
        run.terminal.info(f"{name} {text}")
    if dry_run:
        form = form or "yaml"
        print_manifest(run, planned, options, kind=kind or "", form=form, sweep=sweep)
        return 0
    if planned.target is not None and planned.target.description:
        run.terminal.info(planned.target.description)
    submission = build_submission(
        planned, options, settings=run.settings, progress=run.start_progress(progress)
    )
    run.stop_progress()
    # Imported now, because a dry run follows no job.
    if sweep is not None:
        from danlu.cli.job_output.sweep import run_sweep

        return run_sweep(run, submission, sweep, progress=progress)
    from danlu.cli.job_output.foreground import run_job

    return run_job(run, submission, progress=progress, replace=replace, detach=detach)


# -- options


def _parse_train_options(run: Session, flags: dict[str, Any]) -> TrainOptions:
    """Build :class:`TrainOptions` from the command line; most have the name of their flag."""
    counts = {name: flags.pop(name.replace("-", "_")) for name in _REPLICA_TYPES}
    replicas = {name: count for name, count in counts.items() if count is not None}
    replicas |= parse_scaling(flags.pop("others"))
    if flags["module"] and flags["script"]:
        # As with `python -m`, everything after the module belongs to it.
        flags["args"] = (flags["script"], *flags["args"])
        flags["script"] = ""
    file, *further = flags.pop("manifests") or ("",)
    return TrainOptions.from_keywords(
        run.directory,
        file=file,
        further_files=tuple(further),
        replicas=replicas,
        **_parse_environment(flags.pop("env"), flags.pop("environment")),
        claims=_parse_claims(flags.pop("claims")),
        deadline=_parse_seconds("--deadline", flags.pop("deadline")),
        finish_timeout=_parse_seconds("--finish-timeout", flags.pop("finish_timeout")),
        on=run.on,
        text=sys.stdin.read() if file == "-" and sys.stdin is not None else "",
        **flags,
    )


def _parse_environment(texts: tuple[str, ...], variables: tuple[str, ...]) -> dict[str, Any]:
    """Return the build file and the variables; ``--env`` is for both, as in cells."""
    values = [convert.env(text) for text in texts]
    files = [value for value in values if isinstance(value, str)]
    if len(files) > 1:
        raise UsageError(f"--env: {files[0]} and {files[1]} exclude each other", hint="use one")
    environment = {
        name: text for value in values if isinstance(value, dict) for name, text in value.items()
    }
    environment.update(map(parse_variable, variables))
    return {"env": "".join(files), "environment": environment}


def _parse_sweep_options(flags: dict[str, Any], *, replace: bool) -> SweepOptions | None:
    """Remove the options of a sweep from ``flags``; return None if there is no ``--sweep``.

    Raises :class:`UsageError` for invalid values, and for options that need ``--sweep``.
    """
    values = {name: flags.pop(name) for name in SWEEP_FIELDS}
    sweep = flags.pop("sweep")
    if not sweep:
        for option in JOB_OPTIONS:
            if option.flag and values.get(option.field_name):
                raise UsageError(
                    f"--{option.name} is only valid with --sweep",
                    hint="add the values to try: --sweep lr=0.1,0.01",
                )
        return None
    # Only here: most jobs need none of the sweep's modules.
    from danlu.sweeps.options import parse_sweep_options

    return parse_sweep_options(sweep, **values, replace=replace)


def _parse_claims(texts: tuple[str, ...]) -> Mapping[str, str]:
    claims = {}
    for text in texts:
        name, _, directory = text.partition("=")
        if not name or not directory:
            raise click.UsageError(f"--claim: {text!r} is not of the form NAME=DIR")
        claims[name] = directory
    return claims


def _parse_seconds(flag: str, text: str) -> float | None:
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error}") from error
