"""``danlu serve``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import click
import msgspec

from danlu.cli.groups import RunnableGroup
from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, on_option, progress_option, verbosity_options
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import Session, current_session
from danlu.packing.serve_local import (
    find_served_model,
    follow_server_log,
    list_servers,
    read_server,
    remove_server,
    start_server,
)
from danlu.packing.serve_options import ServeOptions
from danlu.serving.cluster.views import ServedModelView
from danlu.util.human import format_age

if TYPE_CHECKING:
    from danlu.serving.cluster.client import ClusterServing, ServedLine

_DEFAULTS = ServeOptions()
_STYLES = {"Ready": "green", "Updating": "yellow", "NotReady": "yellow", "Failed": "red"}
_HEAD = ("NAME", "IMAGE", "KIND", "STATE", "READY", "AGE", "URL")
#: Options that only a server of this machine has, and those that only a cluster has.
_LOCAL_OPTIONS = ("port", "host")
_CLUSTER_OPTIONS = ("replicas", "cpus", "memory", "kserve", "dry_run")


@declare_command("serve", cls=RunnableGroup, no_args_is_help=False, invoke_without_command=True)
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
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose web pages may send requests, * for all; may be repeated.",
)
@click.option("--gpus", default="", metavar="N|all|none|IDS", help="GPUs of the server.")
@click.option("-n", "--name", default="", metavar="NAME", help="Name [default: the image's].")
@click.option("-d", "--detach", is_flag=True, help="Run in the background; `serve ls` lists it.")
@click.option(
    "--replicas",
    default=_DEFAULTS.replicas,
    show_default=True,
    metavar="N|MIN-MAX",
    help="Pods on a cluster; a range is scaled by their CPU use.",
)
@click.option(
    "--cpus",
    type=click.FloatRange(min=0, min_open=True),
    metavar="CORES",
    help="Cores that a pod requests.",
)
@click.option(
    "--memory", default="", metavar="SIZE", help="Memory that a pod requests and may use."
)
@click.option("--kserve", is_flag=True, help="Use KServe instead of a Deployment and a Service.")
@click.option("--dry-run", is_flag=True, help="Print the manifests for a cluster and exit.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["yaml", "json"]), help="Format of --dry-run."
)
@on_option
@progress_option
@verbosity_options
def command(
    image: str,
    detach: bool,
    dry_run: bool,
    form: str | None,
    progress: str,
    **flags: Any,
) -> int:
    """Serve a packed model over HTTP until it is interrupted.

    The Open Inference Protocol v2, KServe's V1 :predict, SageMaker's and MLflow's /invocations,
    /metrics, and a page to try the model. Requests that wait are called together if the predictor
    gives the same for them. On SIGTERM it answers the requests that it has, then ends.

    With --detach it runs in the background. On a cluster (--on kubernetes) the image is pushed, and
    served by a Deployment and a Service; a new version replaces an earlier one without losing a
    request.
    """
    run = current_session()
    if form and not dry_run:
        raise click.UsageError("-o requires --dry-run")
    options = ServeOptions(**flags)
    on_cluster = _is_on_cluster(run)
    _reject_options(run, _LOCAL_OPTIONS if on_cluster else _CLUSTER_OPTIONS)
    if not on_cluster and not detach:
        # Imported now, because the other ways do not run a container in this process.
        from danlu.packing.serve import serve_model

        return serve_model(
            image, options, settings=run.settings, progress=run.start_progress(progress)
        )
    if dry_run:
        from danlu.packing.serve_cluster import render_manifests

        text = render_manifests(image, options, form or "yaml", settings=run.settings)
        run.terminal.write_stdout(text.rstrip("\n"))
        return 0
    if on_cluster:
        from danlu.packing.serve_cluster import deploy_model as start
    else:
        start = start_server
    view = start(image, options, settings=run.settings, progress=run.start_progress(progress))
    run.stop_progress()
    run.terminal.info(f"{view.name} is ready: {_format_ready(view)}")
    run.terminal.write_stdout(view.url)
    return 0


def _is_on_cluster(run: Session) -> bool:
    return run.has_contexts and run.context.cluster is not None


def _open_cluster(run: Session) -> ClusterServing | None:
    """Return the served models of the session's cluster; None if it is this machine."""
    if not _is_on_cluster(run):
        return None
    from danlu.packing.serve_cluster import open_cluster

    return open_cluster(run.settings)


def _reject_options(run: Session, names: Sequence[str]) -> None:
    """Raise :class:`click.UsageError` for options that the place of the server does not have."""
    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if given and names is _LOCAL_OPTIONS:
        where = run.named_context[0]
        raise click.UsageError(
            f"{' and '.join(given)} cannot be used with --on {where}: the address is that of a"
            " Service, port 80"
        )
    if given:
        raise click.UsageError(f"{' and '.join(given)} needs --on kubernetes")


# -- manage

_group = cast("RunnableGroup", command)


@_group.subcommand("ls", section="Manage")
@format_option()
@on_option
@verbosity_options
def ls(form: str) -> None:
    """List served models.

    Lists those in the background of this machine, or of one context with --on. With -q only names
    are printed.
    """
    run = current_session()
    cluster = _open_cluster(run)
    if cluster is not None:
        views = list(anyio.run(cluster.views))
    else:
        views = list(list_servers(run.settings, run.named_context if run.on else None))
    if form == "json":
        print_json([_to_json(view) for view in views], run.terminal)
    elif run.quiet:
        for view in views:
            run.terminal.write_stdout(view.name)
    elif not views:
        run.terminal.info("no served models; `danlu serve REF -d` starts one")
    else:
        now = datetime.now(UTC)
        print_table(_HEAD, [_describe_row(view, now) for view in views], run.terminal, right=(4,))
        for view in views:
            if view.reason:
                run.terminal.info(f"{view.name}: {view.reason}")


@_group.subcommand("status", section="Manage")
@click.argument("name")
@format_option()
@on_option
@verbosity_options
def status(name: str, form: str) -> None:
    """Show a served model and its pods.

    Exits 0 whether it is ready or not.
    """
    run = current_session()
    cluster = _open_cluster(run)
    view = read_server(name, run.settings) if cluster is None else anyio.run(cluster.view, name)
    if form == "json":
        print_json(_to_json(view), run.terminal)
        return
    for label, value in _describe_view(view):
        run.terminal.write_stdout(f"{run.terminal.style_stdout(label.ljust(10), 'bold')} {value}")
    if view.pods:
        run.terminal.write_stdout("")
        rows = [
            [
                pod.name,
                TableCell(pod.state, _STYLES.get(pod.state, "")),
                "latest" if pod.current else "earlier",
                str(pod.restarts),
                pod.reason or "-",
            ]
            for pod in view.pods
        ]
        print_table(("POD", "STATE", "VERSION", "RESTARTS", "REASON"), rows, run.terminal)


@_group.subcommand("logs", section="Manage")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Wait for more output until Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@on_option
@verbosity_options
def logs(name: str, follow: bool, tail: int | None) -> None:
    """Print the output of a served model: of all its pods on a cluster."""
    run = current_session()
    cluster = _open_cluster(run)
    if cluster is None:
        for data in follow_server_log(name, run.settings, follow=follow, tail=tail):
            run.terminal.write_stdout_bytes(data)
        return

    def show(line: ServedLine) -> None:
        # Pods are named NAME-REVISION-SUFFIX.
        run.terminal.write_stdout(f"{line.pod.rpartition('-')[2]} │ {line.text}")

    anyio.run(partial(_print_pod_logs, cluster, name, show, follow=follow, tail=tail))


async def _print_pod_logs(
    cluster: ClusterServing,
    name: str,
    show: Callable[[ServedLine], None],
    *,
    follow: bool,
    tail: int | None,
) -> None:
    if follow:
        await cluster.follow_logs(name, show, tail=tail)
        return
    async with aclosing(cluster.logs(name, tail=tail)) as lines:
        async for line in lines:
            show(line)


@_group.subcommand("rm", section="Manage")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@on_option
@verbosity_options
def remove(names: tuple[str, ...]) -> None:
    """Stop and remove served models, after they have answered their requests."""
    run = current_session()
    cluster = _open_cluster(run)
    if cluster is None:
        for name in names:
            find_served_model(name, run.settings)
    for name in names:
        if cluster is None:
            remove_server(name, run.settings)
        else:
            anyio.run(cluster.remove, name)
        run.terminal.info(f"{name} removed")


def _format_ready(view: ServedModelView) -> str:
    return f"{view.ready} of {view.replicas} replica{'' if view.replicas == 1 else 's'}"


def _describe_row(view: ServedModelView, now: datetime) -> list[str | TableCell]:
    return [
        view.name,
        view.image or "-",
        view.kind,
        TableCell(view.state, _STYLES.get(view.state, "")),
        f"{view.ready}/{view.replicas}",
        format_age((now - view.created).total_seconds()) if view.created else "-",
        view.url or "-",
    ]


def _describe_view(view: ServedModelView) -> Iterator[tuple[str, str]]:
    yield "name", view.name
    yield "image", view.image or "-"
    yield "kind", f"{view.kind} in namespace {view.namespace}" if view.namespace else view.kind
    yield "state", view.state
    yield "ready", _format_ready(view)
    yield "url", view.url or "-"
    if view.reason:
        yield "reason", view.reason


def _to_json(view: ServedModelView) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return fields
