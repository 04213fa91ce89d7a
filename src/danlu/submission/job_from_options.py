"""Build the job of a script, a module or a command from its options."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from pathlib import Path, PurePath
from typing import Any, TypeVar, cast

import msgspec

from danlu.engine.container_options import split_volume
from danlu.errors import UsageError
from danlu.submission.options import (
    ReplicaResources,
    TrainOptions,
    format_option_name,
    normalize_option_name,
)
from danlu.training.framework import Framework
from danlu.training.names import FINISH_TIMEOUT_ANNOTATION, KUEUE_QUEUE_LABEL, WHOLE_JOB
from danlu.training.pod_template import (
    add_default_port,
    change_templates,
    escape_references,
    replace_spec,
)
from danlu.training.types import (
    CleanPodPolicy,
    Job,
    JobRestartPolicy,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from danlu.training.validation import check_job
from danlu.util.quantity import to_quantity
from danlu.util.suggest import did_you_mean

P = TypeVar("P", bound=StrEnum)

_GPU_RESOURCE = "nvidia.com/gpu"

#: For jobs that danlu submits to a cluster without one.
_DEFAULT_FINISH_TIMEOUT = "1h"

#: How much of a script's name a job's name takes. Replica names are limited to 63 characters.
_MAX_STEM_LENGTH = 30

#: No vowels, so that no suffix spells a word.
SUFFIX_LENGTH = 5
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def build_job_from_options(
    options: TrainOptions,
    framework: Framework,
    *,
    command: Sequence[str],
    image: str,
    directory: str,
) -> Job:
    """Return a job that runs ``command`` on every replica, started as its framework requires.

    References in ``command`` are expanded as in a manifest; variables of the options are literal.
    ``directory`` is the working directory inside ``image``, empty for processes. Raises
    :class:`UsageError` for replica types that the framework does not have, and
    :class:`~danlu.training.manifest.ManifestError` for invalid values.
    """
    numbers = _replica_numbers(options.replicas, framework)
    _check_types(options.resources, framework)
    module = options.module.removesuffix(".__main__").rpartition(".")[2]
    deadline = None if options.deadline is None else ceil(options.deadline)
    clean_pod_policy = _find_policy(CleanPodPolicy, options.clean_pod_policy or "None")
    # With some frameworks' own defaults a script with a bug would be restarted forever.
    restart = options.restart or ("Never" if options.backoff_limit is None else "OnFailure")
    together = None
    if restart.lower() == WHOLE_JOB.lower():
        restart, together = "OnFailure", JobRestartPolicy(options.backoff_limit)

    def build_spec(type: ReplicaType, words: Sequence[str]) -> ReplicaSpec:
        pod = _pod_spec(options, framework, type, words, image=image, directory=directory)
        template = add_default_port({"spec": pod}, framework)
        return ReplicaSpec(numbers[type], template, _find_policy(RestartPolicy, restart))

    job = Job(
        framework.kind,
        options.name or generate_job_name(options.script or module or "job"),
        {type: build_spec(type, command) for type in numbers},
        run_policy=RunPolicy(
            clean_pod_policy,
            active_deadline_seconds=deadline,
            backoff_limit=options.backoff_limit,
        ),
        job_restart_policy=together,
    )
    # wrap_command needs the job, for example to count the slots of all workers.
    commands = {type: framework.wrap_command(job, type, command) for type in numbers}
    replicas = {type: build_spec(type, words) for type, words in commands.items()}
    return check_job(msgspec.structs.replace(job, replicas=replicas), framework)


def generate_job_name(script: str) -> str:
    """Return a new job name that starts like the script's: ``train-x4k2p``."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")[:_MAX_STEM_LENGTH]
    stem = stem.strip("-") if stem[:1].isalpha() else f"job-{stem}".strip("-")
    return complete_generated_name(f"{stem}-")


def complete_generated_name(prefix: str) -> str:
    """Return a name as the API server makes of ``generateName``: the prefix and five letters."""
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(SUFFIX_LENGTH))
    return f"{prefix[: 63 - SUFFIX_LENGTH]}{suffix}"


# -- pods -----------------------------------------------------------------------------------------


def _pod_spec(
    options: TrainOptions,
    framework: Framework,
    type: ReplicaType,
    command: Sequence[str],
    *,
    image: str,
    directory: str,
) -> dict[str, Any]:
    limits = _resource_limits(options, framework, type)
    container: dict[str, Any] = {
        "name": framework.container,
        "image": image,
        "command": list(command),
    }
    if directory:
        container["workingDir"] = directory
    if options.environment:
        container["env"] = [
            {"name": name, "value": escape_references(value)}
            for name, value in options.environment.items()
        ]
    if limits:
        container["resources"] = {"limits": limits}
    volumes, mounts = build_volumes(options)
    if not volumes:
        return {"containers": [container]}
    return {"containers": [{**container, "volumeMounts": mounts}], "volumes": volumes}


def _resource_limits(
    options: TrainOptions, framework: Framework, type: ReplicaType
) -> dict[str, str]:
    named = {normalize_option_name(name): value for name, value in options.resources.items()}
    resources = named.get(normalize_option_name(type), ReplicaResources())
    gpus = 0 if type in framework.idle_types else options.gpu
    if resources.gpu is not None:
        gpus = resources.gpu
    limits = {
        "cpu": resources.cpu or options.cpu,
        "memory": to_quantity(resources.memory or options.memory),
        _GPU_RESOURCE: str(gpus) if gpus else "",
    }
    return {key: value for key, value in limits.items() if value}


def _find_policy(policies: type[P], name: str) -> P:
    """Return the policy called ``name``, in any case; an unknown name is left to validation."""
    named = {str(policy).lower(): policy for policy in policies}
    return named.get(name.lower(), cast("P", name))


def build_volumes(options: TrainOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ``volumes`` of a pod and the ``volumeMounts`` of its container.

    A relative source is relative to the current directory. Raises :class:`UsageError` for an
    invalid volume.
    """
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, text in enumerate(options.volumes):
        source, target, read_only = split_volume(text)
        path = options.directory.absolute() / Path(source).expanduser()
        name = f"volume-{number}"
        volumes.append({"name": name, "hostPath": {"path": str(path)}})
        mode = {"readOnly": True} if read_only else {}
        mounts.append({"name": name, "mountPath": target, **mode})
    return volumes, mounts


# -- replica types --------------------------------------------------------------------------------


def _replica_numbers(given: Mapping[str, int], framework: Framework) -> dict[ReplicaType, int]:
    """Return the replicas by type, in the framework's order, with required types added."""
    known = {normalize_option_name(type): type for type in framework.replica_types}
    _check_types(given, framework)
    numbers = {known[normalize_option_name(name)]: count for name, count in given.items()}
    added = [type for type in framework.required_types if type not in numbers]
    if not numbers and set(framework.idle_types).issuperset(added):  # something must compute
        default, types = framework.default_type, framework.replica_types
        added.append(default if default in types else types[0])
    # At least one, also of a type whose default in manifests is 0 (MPI's workers).
    numbers |= {type: max(1, framework.default_replicas.get(type, 1)) for type in added}
    return {type: numbers[type] for type in framework.replica_types if type in numbers}


def _check_types(names: Iterable[str], framework: Framework) -> None:
    known = {normalize_option_name(type) for type in framework.replica_types}
    for name in names:
        if normalize_option_name(name) not in known:
            flags = [f"--{format_option_name(type)}" for type in framework.replica_types]
            raise UsageError(
                f"{framework.name} has no replica type {name}",
                hint=did_you_mean(f"--{name}", flags, otherwise=f"it has {', '.join(flags)}"),
            )


# -- the end of a job -----------------------------------------------------------------------------


def apply_ending(job: Job, options: TrainOptions) -> Job:
    """Return the job with the grace period and finish timeout of the options, if given."""
    if options.finish_timeout is not None:
        job = _set_finish_timeout(job, f"{options.finish_timeout:g}s")
    if options.grace is None:
        return job
    grace = {"terminationGracePeriodSeconds": options.grace}
    return change_templates(job, lambda template: replace_spec(template, grace))


def apply_queue(job: Job, queue: str) -> Job:
    """Return the job as Kueue takes it into its LocalQueue ``queue``; unchanged without one.

    It is suspended from the start: whether Kueue itself would do that depends on its configuration.
    """
    if not queue:
        return job
    return msgspec.structs.replace(
        job,
        labels={**job.labels, KUEUE_QUEUE_LABEL: queue},
        run_policy=msgspec.structs.replace(job.run_policy, suspend=True),
    )


def add_default_finish_timeout(job: Job) -> Job:
    """Return the job with the finish timeout of danlu's own jobs on a cluster, unless it has one.

    Jobs of other clients have no such annotation and keep Kubeflow's rule.
    """
    if FINISH_TIMEOUT_ANNOTATION in job.annotations:
        return job
    return _set_finish_timeout(job, _DEFAULT_FINISH_TIMEOUT)


def _set_finish_timeout(job: Job, text: str) -> Job:
    annotations = {**job.annotations, FINISH_TIMEOUT_ANNOTATION: text}
    return msgspec.structs.replace(job, annotations=annotations)
