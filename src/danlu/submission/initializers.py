"""Run danlu's own program in the initializers of a TrainJob whose images are replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.local.pod import EnvSource, ManifestObjects, resolve_env
from danlu.replica_runtime import initializer
from danlu.training.framework import Framework
from danlu.training.pod_template import append_to, find_main_container, pod_spec, replace_spec
from danlu.training.types import Job, ReplicaSpec, RestartPolicy

_PROGRAM_MOUNT = "/run/danlu-initializer.py"
_SOURCE_MOUNT = "/run/danlu-source"


def provide_initializers(
    job: Job, framework: Framework, objects: ManifestObjects, *, contained: bool
) -> Job:
    """Return the job with a program in each initializer that has none.

    ``contained`` is whether they are containers rather than processes. Raises :class:`UsageError`
    for an address that cannot be loaded, and for an initializer without a volume for its data.
    """
    replicas = {
        type: _provide_program(spec, type, framework.data_directories[type], objects, contained)
        if type in framework.data_directories
        else spec
        for type, spec in job.replicas.items()
    }
    return msgspec.structs.replace(job, replicas=replicas)


def _provide_program(
    spec: ReplicaSpec, type: str, directory: str, objects: ManifestObjects, contained: bool
) -> ReplicaSpec:
    template = spec.template
    main = find_main_container(template, type)
    if main.get("command") or main.get("args"):
        return spec
    _check_mount(main, directory)
    variables = resolve_env(main, EnvSource(template, objects, address="", node=""), {})
    uri = variables.get(initializer.STORAGE_URI, "")
    kind, source = os.path.basename(directory), initializer.find_source(uri)
    try:
        initializer.check_address(kind, uri)
    except initializer.InitializerError as error:
        raise UsageError(f"{type}: {error.message}", hint=error.hint) from error
    if source and not os.path.exists(source):
        raise UsageError(f"{type}: {source} does not exist")
    program = initializer.__file__
    # Variables of the user's shell are none of the job's.
    unset = [{"name": name, "value": ""} for name in initializer.VARIABLES if name not in variables]
    main = {**main, "env": [*(main.get("env") or ()), *unset]}
    volumes = []
    if contained:
        mounts = {_PROGRAM_MOUNT: program}
        program = _PROGRAM_MOUNT
        if source:
            place = f"{_SOURCE_MOUNT}/{Path(source).name}"
            mounts[place], source = source, place
        volumes = [_host_volume(*mount) for mount in mounts.items()]
        main = append_to(main, "volumeMounts", *(_mount_volume(place) for place in mounts))
    words = [program, kind, directory, *([source] if source else [])]
    main = {**main, "command": ["python3", *words]}
    others = [each for each in pod_spec(template)["containers"] if each["name"] != main["name"]]
    pod = append_to(pod_spec(template), "volumes", *volumes)
    return msgspec.structs.replace(
        spec,
        template=replace_spec(template, {**pod, "containers": [main, *others]}),
        # Its clients try again themselves. What was killed is started again.
        restart_policy=RestartPolicy.EXIT_CODE,
    )


def _check_mount(main: Mapping[str, Any], directory: str) -> None:
    """Raise :class:`UsageError` if no volume keeps what is written to ``directory``."""
    paths = [mount["mountPath"].rstrip("/") for mount in main.get("volumeMounts") or ()]
    if not any(f"{directory}/".startswith(f"{path}/") for path in paths):
        raise UsageError(
            f"container {main.get('name')} has no volume at {directory}: its data would be lost",
            hint=f"mount the volume at {os.path.dirname(directory)}, there and in the nodes",
        )


def _host_volume(place: str, path: str) -> dict[str, Any]:
    return {"name": _name_volume(place), "hostPath": {"path": path}}


def _mount_volume(place: str) -> dict[str, Any]:
    return {"name": _name_volume(place), "mountPath": place, "readOnly": True}


def _name_volume(place: str) -> str:
    return "danlu-program" if place == _PROGRAM_MOUNT else "danlu-source"
