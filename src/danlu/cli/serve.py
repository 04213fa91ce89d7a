"""``danlu serve``."""

from __future__ import annotations

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import on_option, progress_option, verbosity_options
from danlu.cli.session import current_session
from danlu.commands.serve import ServeOptions, serve_model

_DEFAULTS = ServeOptions()


@declare_command("serve")
@click.argument("image", metavar="REF")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.port,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option("--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=_DEFAULTS.workers,
    show_default=True,
    help="Processes, each with the model.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULTS.timeout,
    show_default=True,
    metavar="SECONDS",
    help="Time to answer a request.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_batch,
    show_default=True,
    metavar="ROWS",
    help="Most rows of one call of the predictor.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="Port for gRPC, if the image was packed with --grpc.",
)
@click.option("--gpus", default="", metavar="N|all|none|IDS", help="GPUs of the server.")
@on_option
@progress_option
@verbosity_options
def command(
    image: str,
    port: int,
    host: str,
    workers: int,
    timeout: float,
    max_batch: int,
    grpc_port: int | None,
    gpus: str,
    progress: str,
) -> int:
    """Serve a packed model over HTTP until it is interrupted.

    The Open Inference Protocol v2, KServe's V1 :predict, SageMaker's and MLflow's /invocations,
    /metrics, and a page to try the model. Requests that wait are called together if the predictor
    gives the same for them. On SIGTERM it answers the requests that it has, then ends.
    """
    run = current_session()
    return serve_model(
        image,
        ServeOptions(host, port, workers, timeout, max_batch, gpus, grpc_port),
        settings=run.settings,
        progress=run.start_progress(progress),
    )
