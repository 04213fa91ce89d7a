"""Serve a packed model on a cluster: choose its image and its objects, and follow its start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import anyio
import msgspec

from danlu.engine.kubernetes.settings import count_gpus
from danlu.engine.settings import Settings
from danlu.errors import OutsideError, UsageError
from danlu.graph.progress import Message, Progress
from danlu.image.cluster_push import push_cluster_image
from danlu.image.cluster_repository import cluster_repository
from danlu.image.manage import find_image
from danlu.jobs.backends import find_target
from danlu.kube.kubeconfig import load_cluster_config
from danlu.kube.types import Manifest
from danlu.oci.reference import DEFAULT_REGISTRY, Reference
from danlu.packing.serve_image import require_server
from danlu.packing.serve_options import ServeOptions
from danlu.sandbox.emulation import host_platform
from danlu.serving import layout
from danlu.serving.cluster.client import ClusterServing
from danlu.serving.cluster.manifests import (
    PORT,
    SERVICE_PORT,
    ModelDeployment,
    check_name,
    choose_name,
    parse_replicas,
    render_deployment,
    render_kserve,
)
from danlu.serving.cluster.views import ServedModelView
from danlu.serving.model_servers import ModelServer, find_model_server
from danlu.sources.image import ResolvedImage, resolve_image
from danlu.store import Store
from danlu.util.fork import run_in_child
from danlu.util.human import parse_size
from danlu.util.sanitize import escape_unprintable
from danlu.util.yaml_with_lines import dump_yaml


def open_cluster(settings: Settings) -> ClusterServing:
    """Return the served models of the settings' context, which must be a cluster."""
    target = find_target(settings.context, settings)
    cluster = target.cluster
    if cluster is None:
        raise UsageError(f"context {target.name} is not a cluster")
    access = load_cluster_config(context=cluster.context)
    return ClusterServing(access, namespace=cluster.namespace, where=target.name)


def deploy_model(
    image: str, options: ServeOptions, *, settings: Settings, progress: Progress
) -> ServedModelView:
    """Apply the objects of a packed image to a cluster, and wait until it answers.

    An image of the local store is pushed first. Forks, so the process must not have other threads.
    Raises :class:`~danlu.errors.DanluError`; an earlier version then still answers.
    """
    serving = open_cluster(settings)
    model = _plan_deployment(image, options, serving.namespace, settings)
    found = _find_image(image, settings)
    reference = _publish_image(image, found, settings, progress)
    model = _use_server(model, found.server)
    model = msgspec.structs.replace(model, image=reference)
    report = _message_reporter(progress)

    async def deploy() -> ServedModelView:
        existed = await serving.apply(model, kserve=options.kserve)
        report(f"{'updating' if existed else 'starting'} {model.name}: {reference}")
        return await serving.wait_until_ready(model.name, report)

    return anyio.run(deploy)


def render_manifests(image: str, options: ServeOptions, form: str, *, settings: Settings) -> str:
    """Return the objects as YAML or JSON; nothing is pushed or sent to the cluster.

    An image that the registry does not have is named by its tag.
    """
    model = _plan_deployment(image, options, _find_namespace(settings), settings)
    found = _find_image(image, settings)
    reference = _name_reference(image, found, settings)
    model = _use_server(model, found.server)
    model = msgspec.structs.replace(model, image=reference)
    documents = render_kserve(model) if options.kserve else render_deployment(model)
    return format_manifests(documents, form)


def _find_namespace(settings: Settings) -> str:
    """Return the namespace of the context, which needs no kubeconfig to print manifests."""
    cluster = find_target(settings.context, settings).cluster
    assert cluster is not None
    if cluster.namespace:
        return cluster.namespace
    try:
        return load_cluster_config(context=cluster.context).namespace or "default"
    except UsageError:
        if cluster.context:
            raise
        return "default"


def format_manifests(documents: list[Manifest], form: str) -> str:
    """Return documents as ``yaml`` or as one ``json`` List."""
    if form == "yaml":
        return "---\n".join(dump_yaml(document) for document in documents)
    whole = {"apiVersion": "v1", "kind": "List", "items": documents}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _message_reporter(progress: Progress) -> Callable[[str], None]:
    started = time.monotonic()
    return lambda text: progress(Message(text, time.monotonic() - started))


def _plan_deployment(
    image: str, options: ServeOptions, namespace: str, settings: Settings
) -> ModelDeployment:
    """Return what the options ask for, without the image."""
    reference = Reference.parse(image)
    config = settings.config.kubernetes
    replicas = parse_replicas(options.replicas)
    if options.grpc_port in (0, PORT, SERVICE_PORT):
        raise UsageError(f"--grpc-port {options.grpc_port} is not free in a pod")
    if options.kserve and options.grpc_port is not None:
        raise UsageError("--grpc-port cannot be used with --kserve, whose services have one port")
    cpu = options.cpus
    if cpu is None and not replicas.is_constant:
        # An autoscaler compares the use of the CPU with what is requested.
        cpu = float(options.workers)
    return ModelDeployment(
        name=check_name(options.name or choose_name(reference.repository)),
        namespace=namespace,
        image="",
        image_name=image,
        command=msgspec.structs.replace(options, host="0.0.0.0", port=PORT).command,
        timeout=options.timeout,
        replicas=replicas,
        cpu=cpu,
        memory=_parse_memory(options.memory),
        gpus=count_gpus(options.gpus),
        grpc_port=options.grpc_port,
        pull_secret=config.image_pull_secret,
        node_selector=config.node_selector,
        tolerations=config.tolerations,
    )


def _use_server(model: ModelDeployment, server: ModelServer) -> ModelDeployment:
    """Return the model with the probes of its server."""
    return msgspec.structs.replace(model, live_path=server.live_path, ready_path=server.ready_path)


def _parse_memory(text: str) -> int | None:
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from error


# -- the image ------------------------------------------------------------------------------------


class _FoundImage(msgspec.Struct, frozen=True):
    """An image: its digest if it is in the store, its reference by digest in a registry if not."""

    server: ModelServer
    digest: str = ""
    reference: str = ""


def _publish_image(image: str, found: _FoundImage, settings: Settings, progress: Progress) -> str:
    """Return the reference by digest that nodes pull; push an image of the local store first."""
    if not found.digest:
        return found.reference
    return push_cluster_image(found.digest, _choose_repository(image, settings), settings, progress)


def _name_reference(image: str, found: _FoundImage, settings: Settings) -> str:
    """Return the reference of an image by digest, or by tag if it may not have been pushed."""
    if not found.digest:
        return found.reference
    return f"{_choose_repository(image, settings)}:{found.digest.rpartition(':')[2][:12]}"


def _find_image(image: str, settings: Settings) -> _FoundImage:
    """Return an image of the store, else of a registry.

    Raises :class:`UsageError` unless it is a packed model with a server.
    """

    def find() -> _FoundImage | None:
        with Store.open(settings.paths.store) as store:
            try:
                digest = find_image(store, image).digest
            except UsageError:
                return None
        return _FoundImage(require_server(image, settings), digest)

    return run_in_child(find) or _resolve_image(image, settings)


def _choose_repository(image: str, settings: Settings) -> str:
    """Return the image's own repository if its name has a registry, else the configured one."""
    reference = Reference.parse(image)
    if reference.registry != DEFAULT_REGISTRY:
        return f"{reference.registry}/{reference.repository}"
    try:
        return cluster_repository(reference.repository.removeprefix("library/"), settings)
    except UsageError as error:
        error.hint = (
            'add `[kubernetes]` with `registry = "registry.example.org/team"` to'
            f" {settings.paths.config_file}, or name the image with its registry"
            " (`danlu image tag`)"
        )
        raise


def _resolve_image(image: str, settings: Settings) -> _FoundImage:
    """Return an image of a registry."""
    reference = Reference.parse(image)
    if reference.registry == DEFAULT_REGISTRY and "/" not in reference.familiar_name:
        raise UsageError(
            f"image {image!r} not found in the local store",
            hint="`danlu pack` makes images to serve, `danlu image ls` lists those here",
        )

    def resolve() -> ResolvedImage:
        platform = host_platform()
        return anyio.run(partial(resolve_image, image, platform, config=settings.config))

    try:
        resolved = run_in_child(resolve)
    except OutsideError as error:
        error.message = f"cannot serve {escape_unprintable(image)}: {error.message}"
        raise
    if layout.LABEL not in resolved.labels:
        raise UsageError(
            f"{image} is not a packed model", hint="`danlu pack` makes images to serve"
        )
    return _FoundImage(
        find_model_server(resolved.labels.get(layout.SERVER_LABEL, "")),
        reference=f"{reference.registry}/{reference.repository}@{resolved.digest}",
    )
