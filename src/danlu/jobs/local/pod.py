"""Turn a rendered pod into containers that an engine can run, with all references resolved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.engine.types import ResourceLimits
from danlu.jobs.local.engine import ContainerSpec
from danlu.jobs.local.env import EnvSource, expand_env, resolve_env
from danlu.jobs.types import Submission
from danlu.sandbox.types import Mount
from danlu.training.types import ReplicaId
from danlu.util.quantity import parse_quantity

GPU_RESOURCE = "nvidia.com/gpu"
PROJECT_MOUNT = "/workspace"

_PYTHONS = ("python", "python3")


class PodContainers(msgspec.Struct, frozen=True):
    """The containers of one attempt; ``grace`` is the pod's grace period, None if not set."""

    init_containers: tuple[ContainerSpec, ...]
    main: ContainerSpec
    sidecars: tuple[ContainerSpec, ...]
    grace: float | None = None


class PodContext(msgspec.Struct, frozen=True):
    """What a pod's containers get in addition to their own specification.

    Attributes:
        environment: Variables of all containers, which the pod's own override.
        main_environment: More of them, for the main container only.
        main_defaults: Variables of the main container that its image or (for a process) the
            supervisor's environment override, too.
        volumes: The host path of each of the pod's volumes, by name.
        mounts: Mounts of all containers that are not processes.
    """

    replica: ReplicaId
    attempt: int
    mark: str
    main: str
    host: str
    address: str
    hosts: Mapping[str, str]
    gpus: tuple[int, ...] = ()
    environment: Mapping[str, str] = {}
    main_environment: Mapping[str, str] = {}
    main_defaults: Mapping[str, str] = {}
    volumes: Mapping[str, Path] = {}
    mounts: tuple[Mount, ...] = ()


def build_pod(pod: Mapping[str, Any], submission: Submission, context: PodContext) -> PodContainers:
    """Build the containers of ``pod``; raises :class:`UsageError` for a dangling reference."""
    spec = pod["spec"]
    node = os.uname().nodename
    source = EnvSource(pod, submission.objects, address=context.address, node=node)
    builder = _ContainerBuilder(submission, context, source)
    containers = spec["containers"]
    named = (container for container in containers if container.get("name") == context.main)
    main = next(named, containers[0])
    return PodContainers(
        tuple(builder.build(container) for container in spec.get("initContainers") or ()),
        builder.build(main, context.main_environment, context.main_defaults),
        tuple(builder.build(container) for container in containers if container is not main),
        spec.get("terminationGracePeriodSeconds"),
    )


def requested_gpus(template: Mapping[str, Any]) -> int:
    """Return the number of GPUs that all containers of a pod template request."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return sum(_container_gpus(container) for container in containers)


def _container_gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return int(parse_quantity(requested.get(GPU_RESOURCE, 0)))


class _ContainerBuilder:
    """Builds the containers of one pod, assigning its GPUs in order."""

    def __init__(self, submission: Submission, context: PodContext, source: EnvSource) -> None:
        self._submission = submission
        self._context = context
        self._source = source
        self._gpus = list(context.gpus)

    def build(
        self,
        container: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> ContainerSpec:
        context, image = self._context, self._submission.images.get(container.get("image") or "")
        first = {**context.environment, **(environment or {})}
        env = resolve_env(container, self._source, first)
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        args = tuple(expand_env(str(word), env.get) for word in words)
        directory = container.get("workingDir") or ""
        if image is None:
            args, env, directory = self._adapt_to_host(args, env, directory)
        return ContainerSpec(
            replica=context.replica,
            attempt=context.attempt,
            name=str(container.get("name") or ""),
            mark=context.mark,
            args=args,
            environment=env,
            directory=directory,
            image=image.digest if image else "",
            limits=self._resource_limits(container),
            volumes=self._volume_mounts(container, contained=image is not None),
            host=context.host,
            address=context.address,
            hosts=context.hosts,
            ports=_container_ports(container),
            arguments=bool(args) and not container.get("command"),
            defaults=defaults or {},
        )

    def _adapt_to_host(
        self, args: tuple[str, ...], env: dict[str, str], directory: str
    ) -> tuple[tuple[str, ...], dict[str, str], str]:
        """Use the user's Python and project directory for a process."""
        python, project = self._submission.python, str(self._submission.directory)
        if python:
            path = env.get("PATH") or os.environ.get("PATH") or os.defpath
            env = {**env, "PATH": f"{os.path.dirname(python)}:{path}"}
            if args and args[0] in _PYTHONS:
                args = (python, *args[1:])
        if directory == PROJECT_MOUNT or directory.startswith(f"{PROJECT_MOUNT}/"):
            directory = project + directory.removeprefix(PROJECT_MOUNT)
        return args, env, os.path.join(project, directory) if directory else project

    def _resource_limits(self, container: Mapping[str, Any]) -> ResourceLimits:
        limits = (container.get("resources") or {}).get("limits") or {}
        number = _container_gpus(container)
        gpus, self._gpus = tuple(self._gpus[:number]), self._gpus[number:]
        return ResourceLimits(
            parse_quantity(limits["cpu"]) if "cpu" in limits else None,
            int(parse_quantity(limits["memory"])) if "memory" in limits else None,
            gpus,
        )

    def _volume_mounts(self, container: Mapping[str, Any], *, contained: bool) -> tuple[Mount, ...]:
        mounts = [
            _volume_mount(mount, self._context.volumes)
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in self._context.volumes
        ]
        if contained:
            project = Mount(PROJECT_MOUNT, self._submission.directory)
            mounts += [project, *self._context.mounts]
        return tuple(mounts)


def _volume_mount(mount: Mapping[str, Any], volumes: Mapping[str, Path]) -> Mount:
    source = volumes[mount["name"]]
    if path := mount.get("subPath"):
        source = source / path
    return Mount(mount["mountPath"], source, readonly=bool(mount.get("readOnly")))


def _container_ports(container: Mapping[str, Any]) -> dict[str, int]:
    return {
        port.get("name") or f"port-{number}": int(port["containerPort"])
        for number, port in enumerate(container.get("ports") or ())
    }
