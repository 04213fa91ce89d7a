"""Prepare, remove and rename environments that run in a cluster."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from math import inf
from pathlib import Path

import anyio
import msgspec

from danlu.engine.engine_commands import EngineCommands, EngineHost
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.environment_image import find_environment_image
from danlu.engine.kubernetes.container import open_project_copy
from danlu.engine.kubernetes.pod import EnvironmentPod, open_pod
from danlu.engine.kubernetes.program import run_in_thread
from danlu.engine.kubernetes.settings import (
    PodSettings,
    PodUser,
    PodVolume,
    count_gpus,
    find_settings,
    render_claim,
    render_labels,
    render_pod,
    write_settings,
)
from danlu.errors import DanluError, OutsideError, UsageError
from danlu.graph.image_config import parse_image_config
from danlu.graph.progress import Message
from danlu.kube.client import DeleteOptions
from danlu.kube.errors import AlreadyExists, Forbidden, NotFound
from danlu.kube.kubeconfig import load_cluster_config, read_current_context
from danlu.kube.resources import PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES
from danlu.sandbox import userns
from danlu.sandbox.emulation import read_image_platform
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.processor import read_image_level
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.sandbox.users import find_user
from danlu.store import Store
from danlu.util.config import KubernetesConfig
from danlu.util.human import parse_duration
from danlu.util.paths import Paths

_NO_VOLUMES = "none"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MAX_BASE_NAME = 40
_STOP_LOSS = (
    "files outside {} are lost when it stops: a pod has no writable layer that stays;"
    " `-v NAME:/path` keeps a directory on a volume"
)
_NO_STORAGE = (
    "the cluster has no default storage class: the project's copy is lost, too, but what programs"
    " wrote to it is copied back first"
)


class KubernetesCommands(EngineCommands):
    """Pods and volumes of environments.

    The registry keeps the layers of images whose environments were removed, and objects of the
    cluster keep their names when an environment is renamed.
    """

    def prepare_container(self, environment: EnvironmentDirectory, host: EngineHost) -> None:
        """Push the environment's image, and create its pod and volumes.

        If it is interrupted, what it created is deleted.
        """
        spec = environment.read_spec()
        _check_spec(spec)
        config = host.config.kubernetes
        found = find_settings(environment)
        place = found or _choose_place(spec, config)
        user = userns.run_inside(host.paths, lambda: _find_user(spec, host.paths))
        architecture, level = _find_processor(spec, host.paths)
        image = host.push_image(spec.image, _make_name(spec.name))
        pod_settings = msgspec.structs.replace(
            place,
            image=image,
            user=user,
            architecture=architecture,
            level=level,
            pull_secret=config.image_pull_secret,
            node_selector=config.node_selector,
            tolerations=config.tolerations,
            idle=round(parse_duration(config.environment_idle)),
            volumes=tuple(
                PodVolume(volume.name, volume.target, volume.readonly) for volume in spec.volumes
            ),
        )
        write_settings(environment, pod_settings)
        limit = parse_duration(config.start_timeout) if config.start_timeout else inf
        started = time.monotonic()

        def report(text: str) -> None:
            host.progress(Message(text, time.monotonic() - started))

        async def create() -> None:
            async with open_pod(pod_settings) as pod:
                await pod.read()  # the cluster can be reached
                created = msgspec.structs.replace(pod_settings, is_created=True)
                # Before anything is created, so that `danlu down` finds it.
                write_settings(environment, created)
                ready = await _create_claims(pod, spec, created, config)
                write_settings(environment, ready)
                is_new = await pod.ensure_running(render_pod(spec, ready), report, limit=limit)
                write_settings(environment, msgspec.structs.replace(ready, is_new=is_new))

        anyio.run(create)

    def remove_container(self, environment: EnvironmentDirectory, keep_image: str = "") -> None:
        """Delete the environment's pod, and the volume with the project's copy.

        Volumes with a name stay.
        """
        settings = find_settings(environment)
        if settings is None or not settings.is_created:
            return
        spec = environment.read_spec()

        async def remove() -> None:
            async with open_pod(settings) as pod:
                await _save_project(pod, environment, spec, settings)
                await pod.delete(grace=0)
                if settings.claim:
                    with suppress(NotFound):
                        await pod.client.delete(
                            PERSISTENT_VOLUME_CLAIMS,
                            settings.claim,
                            namespace=settings.namespace,
                            options=DeleteOptions(),
                        )

        anyio.run(remove)


def _check_spec(spec: EnvironmentSpec) -> None:
    """Raise :class:`UsageError` for what a pod cannot have."""
    if Path(spec.project) in (Path.home(), Path("/")):
        raise UsageError(
            f"{spec.project} is not a project: all of it would be copied to the cluster",
            hint="change to a project's directory",
        )
    count_gpus(spec.gpus)
    for mount in spec.mounts:
        raise UsageError(
            f"cannot mount {mount.source} at {mount.target}: nodes do not have this machine's"
            " files",
            hint=f"`-v NAME:{mount.target}` mounts a volume of the cluster; files of the project"
            " are copied",
        )


def _choose_place(spec: EnvironmentSpec, config: KubernetesConfig) -> PodSettings:
    """Return the pod's name, and the context and namespace that it stays in."""
    context = config.context or read_current_context()
    access = load_cluster_config(context=context)
    # Several machines may use one namespace.
    name = f"danlu-{_make_name(spec.name)[:_MAX_BASE_NAME].strip('-')}-{os.urandom(4).hex()}"
    return PodSettings(name, context, config.namespace or access.namespace, "")


def _make_name(text: str) -> str:
    """Return an environment's name as a part of names of Kubernetes and registries."""
    return re.sub("[^a-z0-9]+", "-", text).strip("-") or "environment"


def _find_user(spec: EnvironmentSpec, paths: Paths) -> PodUser:
    with Store.open(paths.store) as store:
        image, layers = find_environment_image(store, spec)
        text = spec.user or parse_image_config(image.config).user
        user = find_user(LayerView([layer.tree for layer in layers]), text)
    return PodUser(user.uid, user.gid, user.groups)


def _find_processor(spec: EnvironmentSpec, paths: Paths) -> tuple[str, str]:
    """Return the architecture of the environment's image, and the level that it needs."""
    with Store.open(paths.store) as store:
        image, _ = find_environment_image(store, spec)
    return read_image_platform(image.config).architecture, read_image_level(image.config)


async def _create_claims(
    pod: EnvironmentPod, spec: EnvironmentSpec, settings: PodSettings, config: KubernetesConfig
) -> PodSettings:
    """Create the claims that are missing; return the settings with them."""
    warnings = [_STOP_LOSS.format(f"{PROJECT_DIRECTORY} and volumes")]
    claim = settings.claim
    if not claim and await _has_storage(pod, config):
        claim = settings.name
    if not claim:
        warnings.append(_NO_STORAGE)
        if settings.volumes:
            raise OutsideError(
                f"cannot create volume {settings.volumes[0].claim}: the cluster has no default"
                " storage class",
                hint="set kubernetes.storage_class (`kubectl get storageclass` lists them)",
            )
    labels = render_labels(spec.name)
    wanted = {claim: labels} if claim else {}
    # Volumes with a name belong to nobody: they stay when the environment is removed.
    wanted |= {volume.claim: {} for volume in settings.volumes}
    for name, own_labels in wanted.items():
        manifest = render_claim(
            name, settings.namespace, config.volume_size, config.storage_class, own_labels
        )
        with suppress(AlreadyExists):
            await pod.client.create(PERSISTENT_VOLUME_CLAIMS, manifest)
    return msgspec.structs.replace(settings, claim=claim, warnings=tuple(warnings))


async def _has_storage(pod: EnvironmentPod, config: KubernetesConfig) -> bool:
    """Return whether claims get volumes, as far as the user may know."""
    if config.storage_class:
        return config.storage_class != _NO_VOLUMES
    try:
        classes = (await pod.client.list(STORAGE_CLASSES)).items
    # Storage classes belong to the cluster: users of one namespace often may not list them.
    except Forbidden:
        return False
    return any(
        (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
        for item in classes
    )


async def _save_project(
    pod: EnvironmentPod,
    environment: EnvironmentDirectory,
    spec: EnvironmentSpec,
    settings: PodSettings,
) -> None:
    """Copy back what programs made, if the supervisor was killed before it could."""
    found = await pod.read()
    if found is None or found.status.phase != "Running" or not environment.was_started():
        return
    copy = open_project_copy(pod, environment, spec, settings, found.metadata.uid)
    # It may be what the user wants to get rid of.
    with suppress(DanluError):
        await run_in_thread(copy.fetch_changes)
