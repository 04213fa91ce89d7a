"""Serve a packed model on a cluster: choose its image and its objects, and follow its start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import anyio
import msgspec

from danlu.commands.image.cluster_push import push_cluster_image
from danlu.commands.image.cluster_repository import cluster_repository
from danlu.commands.image.manage import find_image
from danlu.commands.jobs.targets import find_target
from danlu.commands.serve_image import require_server
from danlu.commands.serve_options import ServeOptions
from danlu.commands.settings import Settings
from danlu.engine.kubernetes.settings import count_gpus
from danlu.errors import OutsideError, UsageError
from danlu.graph.progress import Message, Progress
from danlu.kube.kubeconfig import load_cluster_config
from danlu.kube.types import Manifest
from danlu.oci.reference import DEFAULT_REGISTRY, Reference
from danlu.sandbox.emulation import host_platform
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
from danlu.sources.image import resolve_reference
from danlu.store import Store
from danlu.training.manifest import dump_yaml
from danlu.util.fork import run_in_child
from danlu.util.human import parse_size
from danlu.util.sanitize import escape_unprintable


def open_cluster(settings: Settings) -> ClusterServing:
    """Return the served models of the settings' context, which must be a cluster."""
    name, cluster = find_target(settings.context, settings)
    if cluster is None:
        raise UsageError(f"context {name} is not a cluster")
    access = load_cluster_config(context=cluster.context)
    return ClusterServing(access, namespace=cluster.namespace, where=name)


def deploy_model(
    image: str, options: ServeOptions, *, settings: Settings, progress: Progress
) -> ServedModelView:
    """Apply the objects of a packed image to a cluster, and wait until it answers.

    An image of the local store is pushed first. Forks, so the process must not have other threads.
    Raises :class:`~danlu.errors.DanluError`; an earlier version then still answers.
    """
    serving = open_cluster(settings)
    model = _plan_deployment(image, options, serving.namespace, settings)
    reference = _publish_image(image, settings, progress)
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
    reference = _find_published(image, settings)
    model = msgspec.structs.replace(model, image=reference)
    documents = render_kserve(model) if options.kserve else render_deployment(model)
    return format_manifests(documents, form)


def _find_namespace(settings: Settings) -> str:
    """Return the namespace of the context, which needs no kubeconfig to print manifests."""
    _, cluster = find_target(settings.context, settings)
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
    if cpu is None and not replicas.is_fixed:
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


def _parse_memory(text: str) -> int | None:
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from error


# -- the image ------------------------------------------------------------------------------------


def _publish_image(image: str, settings: Settings, progress: Progress) -> str:
    """Return the reference by digest that nodes pull; push an image of the local store first."""
    digest = _find_local_image(image, settings)
    if not digest:
        return _resolve_image(image, settings)
    return push_cluster_image(digest, _choose_repository(image, settings), settings, progress)


def _find_published(image: str, settings: Settings) -> str:
    """Return the reference of an image by digest, or by tag if the registry does not have it."""
    digest = _find_local_image(image, settings)
    if not digest:
        return _resolve_image(image, settings)
    return f"{_choose_repository(image, settings)}:{digest.rpartition(':')[2][:12]}"


def _find_local_image(image: str, settings: Settings) -> str:
    """Return the digest of an image of the store that has a server; empty if it is not there."""

    def find() -> str:
        with Store.open(settings.paths.store) as store:
            try:
                digest = find_image(store, image).digest
            except UsageError:
                return ""
        require_server(image, settings)
        return digest

    return run_in_child(find)


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


def _resolve_image(image: str, settings: Settings) -> str:
    """Return the reference of an image in a registry by its digest."""
    reference = Reference.parse(image)
    if reference.registry == DEFAULT_REGISTRY and "/" not in reference.familiar_name:
        raise UsageError(
            f"image {image!r} not found in the local store",
            hint="`danlu pack` makes images to serve, `danlu image ls` lists those here",
        )
    platform = host_platform()

    def resolve() -> str:
        async def ask() -> str:
            return await resolve_reference(image, platform, config=settings.config)

        return str(anyio.run(ask))

    try:
        digest = run_in_child(resolve)
    except OutsideError as error:
        error.message = f"cannot serve {escape_unprintable(image)}: {error.message}"
        raise
    return f"{reference.registry}/{reference.repository}@{digest}"
