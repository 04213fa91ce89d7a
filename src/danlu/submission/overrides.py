"""Override a manifest with flags, to try a job for a cluster on this machine.

``--gpu 0`` drops GPUs, ``-e`` sets a variable of the main containers, ``--claim`` replaces a
PersistentVolumeClaim with a directory, and ``--volume`` replaces what is mounted at a path.
Everything else stays as in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from danlu.errors import UsageError
from danlu.jobs.backends import is_remote
from danlu.jobs.local.pod import MOVED_PROJECT_DIRECTORY
from danlu.jobs.report import WORKSPACE
from danlu.submission.job_from_options import build_volumes
from danlu.submission.options import TrainOptions
from danlu.training.framework import Framework, PodTemplate
from danlu.training.pod_template import (
    change_containers,
    change_templates,
    escape_references,
    find_main_container,
    list_mounted_names,
    pod_spec,
    replace_container,
    replace_spec,
)
from danlu.training.types import Job
from danlu.util.suggest import did_you_mean

_CLAIM = "persistentVolumeClaim"


def override_manifest(job: Job, options: TrainOptions, framework: Framework) -> Job:
    """Return the job with the overrides of the options.

    Raises :class:`UsageError` for a claim that the manifest does not have, a missing directory, and
    an invalid volume.
    """
    if options.gpu == 0:
        job = change_templates(job, _drop_gpus)
    if options.claims:
        directories = _claim_directories(options, job)
        job = change_templates(job, lambda template: _replace_claims(template, directories))
    if options.env:
        moved = "" if is_remote(options.on) else MOVED_PROJECT_DIRECTORY
        job = change_templates(job, lambda template: _run_in_project(template, framework, moved))
    if options.environment:
        job = change_templates(
            job, lambda template: set_variables(template, framework, options.environment)
        )
    if options.volumes:
        volumes, mounts = build_volumes(options)
        job = change_templates(
            job, lambda template: _mount_volumes(template, framework, volumes, mounts)
        )
    return job


def _run_in_project(template: PodTemplate, framework: Framework, moved: str) -> PodTemplate:
    """Run the main container in the project by default, as a script in the same environment.

    The project is at ``moved`` if the container has a volume at its usual path.
    """
    main = find_main_container(template, framework.container)
    paths = [_normalize_path(mount["mountPath"]) for mount in main.get("volumeMounts") or ()]
    project = (moved if WORKSPACE in paths else "") or WORKSPACE
    return replace_container(
        template, {**main, "workingDir": main.get("workingDir") or project}, main
    )


def set_variables(
    template: PodTemplate, framework: Framework, variables: Mapping[str, str]
) -> PodTemplate:
    """Set variables of the main container, before its other ones, which may refer to them."""
    main = find_main_container(template, framework.container)
    kept = [entry for entry in main.get("env") or () if entry.get("name") not in variables]
    env = [{"name": name, "value": escape_references(text)} for name, text in variables.items()]
    return replace_container(template, {**main, "env": [*env, *kept]}, main)


# -- GPUs -----------------------------------------------------------------------------------------


def _drop_gpus(template: PodTemplate) -> PodTemplate:
    return change_containers(template, _drop_gpu_resources)


def _drop_gpu_resources(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources")
    if not resources:
        return container
    kept = {
        field: {name: value for name, value in quantities.items() if not _is_gpu(name)}
        if field in ("limits", "requests") and quantities
        else quantities
        for field, quantities in resources.items()
    }
    return {**container, "resources": {field: value for field, value in kept.items() if value}}


def _is_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU, or a part of one (``nvidia.com/mig-1g.5gb``)."""
    return "gpu" in resource or resource.startswith("nvidia.com/")


# -- claims ---------------------------------------------------------------------------------------


def _claim_directories(options: TrainOptions, job: Job) -> dict[str, Path]:
    """Return the directories by the names of the claims they replace, all checked."""
    known = list(dict.fromkeys(_claim_names(job)))
    for name in options.claims:
        if name not in known:
            raise _unknown_claim(name, known, options.file)
    root = options.directory.absolute()
    directories = {name: root / Path(path).expanduser() for name, path in options.claims.items()}
    for name, directory in directories.items():
        if not directory.is_dir():
            raise UsageError(
                f"--claim {name}: {directory} is not a directory", hint="create it first"
            )
    return directories


def _claim_names(job: Job) -> Iterable[str]:
    for spec in job.replicas.values():
        for volume in pod_spec(spec.template).get("volumes") or ():
            if volume.get(_CLAIM):
                yield str(volume[_CLAIM].get("claimName", ""))


def _unknown_claim(name: str, known: list[str], file: str) -> UsageError:
    if not known:
        hint = "use --volume SRC:DST to mount a directory"
        return UsageError(f"{file} has no PersistentVolumeClaims", hint=hint)
    return UsageError(
        f"{file} has no PersistentVolumeClaim {name}",
        hint=did_you_mean(name, known, otherwise=f"it has {', '.join(known)}"),
    )


def _replace_claims(template: PodTemplate, directories: Mapping[str, Path]) -> PodTemplate:
    """Replace claims in a template with directories; a read-only claim stays read-only."""
    volumes = []
    readonly = set()
    for volume in pod_spec(template).get("volumes") or ():
        claim = volume.get(_CLAIM) or {}
        directory = directories.get(str(claim.get("claimName", "")))
        if directory is not None:
            if claim.get("readOnly"):
                readonly.add(volume["name"])
            path = {"path": str(directory), "type": "Directory"}
            volume = {"name": volume["name"], "hostPath": path}
        volumes.append(volume)
    if not volumes:
        return template

    def close(container: Mapping[str, Any]) -> Mapping[str, Any]:
        mounts = [
            {**mount, "readOnly": True} if mount["name"] in readonly else mount
            for mount in container.get("volumeMounts") or ()
        ]
        return {**container, "volumeMounts": mounts} if mounts else container

    return replace_spec(change_containers(template, close), {"volumes": volumes})


# -- volumes --------------------------------------------------------------------------------------


def _mount_volumes(
    template: PodTemplate,
    framework: Framework,
    volumes: list[dict[str, Any]],
    mounts: list[dict[str, Any]],
) -> PodTemplate:
    """Replace in each container what is mounted at the paths of ``mounts``.

    The main container gets all mounts. Volumes that are no longer mounted are dropped, because this
    machine may not have them.
    """
    spec = pod_spec(template)
    before = list(spec.get("volumes") or ())
    names = _fresh_names({str(volume["name"]) for volume in before}, volumes)
    new_mounts = {
        _normalize_path(mount["mountPath"]): {**mount, "name": names[mount["name"]]}
        for mount in mounts
    }
    main = find_main_container(template, framework.container)

    def mount(container: Mapping[str, Any]) -> Mapping[str, Any]:
        old_mounts = list(container.get("volumeMounts") or ())
        paths = {_normalize_path(mount["mountPath"]) for mount in old_mounts}
        kept = [
            mount for mount in old_mounts if _normalize_path(mount["mountPath"]) not in new_mounts
        ]
        added = [new for path, new in new_mounts.items() if container is main or path in paths]
        return {**container, "volumeMounts": [*kept, *added]} if kept or added else container

    changed = change_containers(template, mount)
    dropped = list_mounted_names(template) - list_mounted_names(changed)
    kept = [volume for volume in before if volume["name"] not in dropped]
    added = [{**volume, "name": names[volume["name"]]} for volume in volumes]
    return replace_spec(changed, {"volumes": [*kept, *added]})


def _fresh_names(taken: set[str], volumes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return new names by the volumes' present ones, so that none is taken."""
    names = {}
    for volume in volumes:
        name = str(volume["name"])
        while name in taken:
            name = f"{name}-here"
        names[volume["name"]] = name
    return names


def _normalize_path(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
