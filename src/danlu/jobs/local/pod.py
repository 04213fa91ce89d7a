"""A rendered pod as containers that an engine can run, with nothing left to look up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.jobs.local.quantity import quantity
from danlu.jobs.local.types import Container, Limits, Volume
from danlu.jobs.local.variables import Source, expanded, variables
from danlu.jobs.types import Submission
from danlu.training.types import ReplicaId

__all__ = ["GPU", "PROJECT", "Pod", "Surroundings", "gpus_asked", "pod_of"]

GPU = "nvidia.com/gpu"
PROJECT = "/workspace"

_PYTHONS = ("python", "python3")


class Pod(msgspec.Struct, frozen=True):
    """The containers of one attempt: those before, the one that counts, and those beside it.

    ``grace`` (seconds) is how long the pod's programs have to end; None where it does not say.
    """

    before: tuple[Container, ...]
    main: Container
    beside: tuple[Container, ...]
    grace: float | None = None


class Surroundings(msgspec.Struct, frozen=True):
    """What a pod's containers find around them.

    ``environment`` lies below all they say themselves, ``main_environment`` only in the main one.
    ``volumes`` are by name of the pod's volume what of this machine stands for it.
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
    volumes: Mapping[str, Path] = {}
    mounts: tuple[Volume, ...] = ()


def pod_of(pod: Mapping[str, Any], submission: Submission, around: Surroundings) -> Pod:
    """The containers of ``pod``; raises :class:`UsageError` for a reference to nothing."""
    spec = pod["spec"]
    node = os.uname().nodename
    source = Source(pod, submission.objects, address=around.address, node=node)
    make = _Maker(submission, around, source)
    containers = spec["containers"]
    main = next((one for one in containers if one.get("name") == around.main), containers[0])
    return Pod(
        tuple(make.container(one) for one in spec.get("initContainers") or ()),
        make.container(main, around.main_environment),
        tuple(make.container(one) for one in containers if one is not main),
        spec.get("terminationGracePeriodSeconds"),
    )


def gpus_asked(template: Mapping[str, Any]) -> int:
    """How many GPUs a pod template asks for, all of its containers together."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return sum(_gpus(one) for one in containers)


def _gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return int(quantity(asked.get(GPU, 0)))


class _Maker:
    """Makes the containers of one pod; its GPUs are dealt out in order."""

    def __init__(self, submission: Submission, around: Surroundings, source: Source) -> None:
        self._submission = submission
        self._around = around
        self._source = source
        self._gpus = list(around.gpus)

    def container(
        self, container: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> Container:
        around, image = self._around, self._submission.images.get(container.get("image") or "")
        first = {**around.environment, **(environment or {})}
        found = variables(container, self._source, first)
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        args = tuple(expanded(str(word), found.get) for word in words)
        directory = container.get("workingDir") or ""
        if image is None:
            args, found, directory = self._as_process(args, found, directory)
        return Container(
            replica=around.replica,
            attempt=around.attempt,
            name=str(container.get("name") or ""),
            mark=around.mark,
            args=args,
            environment=found,
            directory=directory,
            image=image.digest if image else "",
            limits=self._limits(container),
            volumes=self._volumes(container, contained=image is not None),
            host=around.host,
            address=around.address,
            hosts=around.hosts,
            ports=_ports(container),
            arguments=bool(args) and not container.get("command"),
        )

    def _as_process(
        self, args: tuple[str, ...], environment: dict[str, str], directory: str
    ) -> tuple[tuple[str, ...], dict[str, str], str]:
        """The same for a process: the user's Python is the one that is found."""
        python, project = self._submission.python, str(self._submission.directory)
        if python:
            path = environment.get("PATH") or os.environ.get("PATH") or os.defpath
            environment = {**environment, "PATH": f"{os.path.dirname(python)}:{path}"}
            if args and args[0] in _PYTHONS:
                args = (python, *args[1:])
        if directory == PROJECT or directory.startswith(f"{PROJECT}/"):
            directory = project + directory.removeprefix(PROJECT)
        return args, environment, os.path.join(project, directory) if directory else project

    def _limits(self, container: Mapping[str, Any]) -> Limits:
        limits = (container.get("resources") or {}).get("limits") or {}
        number = _gpus(container)
        gpus, self._gpus = tuple(self._gpus[:number]), self._gpus[number:]
        return Limits(
            quantity(limits["cpu"]) if "cpu" in limits else None,
            int(quantity(limits["memory"])) if "memory" in limits else None,
            gpus,
        )

    def _volumes(self, container: Mapping[str, Any], *, contained: bool) -> tuple[Volume, ...]:
        volumes = [
            _volume(mount, self._around.volumes)
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in self._around.volumes
        ]
        if contained:
            volumes += [Volume(self._submission.directory, PROJECT), *self._around.mounts]
        return tuple(volumes)


def _volume(mount: Mapping[str, Any], volumes: Mapping[str, Path]) -> Volume:
    source = volumes[mount["name"]]
    if below := mount.get("subPath"):
        source = source / below
    return Volume(source, mount["mountPath"], bool(mount.get("readOnly")))


def _ports(container: Mapping[str, Any]) -> dict[str, int]:
    ports = enumerate(container.get("ports") or ())
    return {one.get("name") or f"port-{at}": int(one["containerPort"]) for at, one in ports}
