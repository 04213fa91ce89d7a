"""``danlu pack``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    file_option,
    format_option,
    frozen_option,
    offline_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.packing.job_models import find_job_model
from danlu.packing.pack import PackOptions, PackResult, pack_model
from danlu.project.project import Project
from danlu.serving.golden import DEFAULT_TOLERANCE
from danlu.serving.model_servers import DANLU
from danlu.util.human import format_size, pluralize
from danlu.util.sanitize import escape_unprintable

_PATH = click.Path(path_type=Path)
_MAX_NAMED = 12


@declare_command("pack")
@click.argument("model", type=_PATH, metavar="MODEL_DIR", required=False)
@file_option
@click.option("-t", "--tag", required=True, metavar="REF", help="Name of the image.")
@click.option(
    "--predictor",
    default="",
    metavar="FILE:CLASS|NAME",
    help="Predictor, or the name of a ready-made one [default: by the files].",
)
@click.option(
    "--network",
    default="",
    metavar="FILE:FUNCTION",
    help="Function that returns the PyTorch network of saved weights.",
)
@click.option(
    "--example",
    "examples",
    multiple=True,
    type=_PATH,
    metavar="FILE",
    help="Example input: JSON, JSON lines, .npy or .npz.",
)
@click.option("--from", "job", default="", metavar="JOB", help="Pack the model of a finished job.")
@click.option("--keep", multiple=True, metavar="PACKAGE", help="Keep a package in any case.")
@click.option("--drop", multiple=True, metavar="PACKAGE", help="Leave a package out in any case.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=DEFAULT_TOLERANCE,
    show_default=True,
    help="Difference of numbers to accept, absolute and relative.",
)
@click.option(
    "--server",
    default=DANLU.name,
    show_default=True,
    metavar="NAME|COMMAND",
    help="Server: bentoml, mlserver, litserve, kserve, triton, vllm, or a command.",
)
@click.option("--no-server", is_flag=True, help="Leave out the model server (`danlu serve`).")
@click.option("--grpc", is_flag=True, help="Let the model server answer gRPC, too (20 MB more).")
@frozen_option
@offline_option
@progress_option
@format_option()
@verbosity_options
def command(
    model: Path | None,
    file: str | None,
    job: str,
    tag: str,
    predictor: str,
    network: str,
    examples: tuple[Path, ...],
    keep: tuple[str, ...],
    drop: tuple[str, ...],
    tolerance: float,
    server: str,
    no_server: bool,
    grpc: bool,
    frozen: bool,
    offline: bool,
    progress: str,
    form: str,
) -> None:
    """Pack a model into an image with only what it needs.

    The predictor runs on example inputs in the project's environment, without a network. The image
    has the packages of the same lock that it used, the model, and the inputs and outputs, which
    `danlu verify` replays. With --from, MODEL_DIR is in the job's project, and may be left out.
    """
    run = current_session()
    directory = run.directory
    if job:
        if file:
            raise click.UsageError("--from cannot be combined with --file")
        found = find_job_model(job, model, run.settings)
        path, project = found.model, Project.open(directory=found.project)
        directory = found.project
        run.project_directory = project.directory
    elif model is None:
        raise click.UsageError("missing MODEL_DIR, or --from JOB")
    else:
        path, project = directory / model, run.open_project(file)
    options = PackOptions(
        model=path,
        tag=tag,
        directory=directory,
        predictor=predictor,
        network=network,
        examples=tuple(run.directory / example for example in examples),
        keep=keep,
        drop=drop,
        tolerance=tolerance,
        server="" if no_server else server,
        grpc=grpc,
        frozen=frozen,
        offline=offline,
    )
    result = pack_model(
        project, options, settings=run.settings, progress=run.start_progress(progress)
    )
    run.stop_progress()
    if form == "json":
        print_json(msgspec.to_builtins(result), run.terminal)
        return
    for line in _describe_result(result):
        run.terminal.info(escape_unprintable(line, limit=1000))
    run.terminal.write_stdout(result.image)


def _describe_result(result: PackResult) -> Iterator[str]:
    share = round(100 * result.size / max(1, result.training_size))
    yield from result.notes
    yield (
        f"{result.name}: {format_size(result.size)}, {share} % of the training image"
        f" ({format_size(result.training_size)}); the model is {format_size(result.model_size)}"
    )
    yield f"packages: {', '.join(result.packages) or 'none'}"
    for kind, names in (("", result.dropped), ("system ", result.dropped_system)):
        if names:
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            listed = ", ".join(names[:_MAX_NAMED])
            yield f"left out {pluralize(len(names), f'{kind}package')}: {listed}{more}"
    yield f"{result.shared_layers} of {result.layers} layers are the training image's"
    examples = pluralize(result.examples, "example")
    yield (
        f"{examples} replayed without a network: {pluralize(result.comparison.values, 'value')}"
        f" compared, largest difference {result.comparison.largest:g}"
    )
