"""The manifest that a script and a few flags stand for: what goes to a cluster as it is."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import ceil
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from danlu.commands.trainorder import Share
from danlu.commands.trainvolumes import mounted
from danlu.errors import UsageError
from danlu.training.types import CleanPodPolicy

if TYPE_CHECKING:
    from danlu.commands.trainorder import TrainOrder
    from danlu.training.framework import Framework
    from danlu.training.types import Job, ReplicaType

__all__ = ["fresh_name", "job_of", "manifest"]

_GPU = "nvidia.com/gpu"

#: Replicas that compute nothing themselves: they get no GPU.
_IDLE = frozenset({"Launcher", "PS", "Scheduler", "Server", "TunerServer", "TunerTracker"})

#: So much of a script's name goes into a job's, whose replicas' names have 63 characters at most.
_LONGEST_STEM = 30
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def job_of(
    order: TrainOrder, framework: Framework, *, command: Sequence[str], image: str, directory: str
) -> Job:
    """The job that runs ``command`` on every replica ordered, each started its framework's way.

    ``directory`` is the working directory inside ``image``, empty for processes. Raises
    :class:`UsageError` for replica types that the framework does not have, and
    :class:`~danlu.training.manifest.ManifestError` for values that no manifest can have.
    """
    from danlu.training.manifest import read_job

    numbers = _numbers(order.replicas, framework)
    _check_types(order.shares, framework)
    name = order.name or fresh_name(order.script or "job")
    commands: Mapping[ReplicaType, Sequence[str]] = dict.fromkeys(numbers, command)

    def written(commands: Mapping[ReplicaType, Sequence[str]]) -> dict[str, Any]:
        pods = {
            one: _pod(order, framework, one, words, image=image, directory=directory)
            for one, words in commands.items()
        }
        return manifest(order, framework, name=name, numbers=numbers, pods=pods)

    job = read_job(written(commands), framework)
    started = {one: framework.launch(job, one, command) for one in numbers}
    return read_job(written(started), framework)


def manifest(
    order: TrainOrder,
    framework: Framework,
    *,
    name: str,
    numbers: Mapping[ReplicaType, int],
    pods: Mapping[ReplicaType, Mapping[str, Any]],
) -> dict[str, Any]:
    """The document of kind ``framework.kind``."""
    policy = {
        "cleanPodPolicy": _clean(order.clean),
        "backoffLimit": order.backoff_limit,
        "activeDeadlineSeconds": None if order.deadline is None else ceil(order.deadline),
    }
    # A script that is wrong would be run for ever under some frameworks' own defaults.
    restart = order.restart or ("Never" if order.backoff_limit is None else "OnFailure")
    replicas = {
        str(one): {
            "replicas": count,
            "restartPolicy": restart,
            "template": {"spec": pods[one]},
        }
        for one, count in numbers.items()
    }
    run_policy = {key: value for key, value in policy.items() if value is not None}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": framework.kind,
        "metadata": {"name": name},
        "spec": {
            **({"runPolicy": run_policy} if run_policy else {}),
            framework.replicas_field: replicas,
        },
    }


def _pod(
    order: TrainOrder,
    framework: Framework,
    type: ReplicaType,
    words: Sequence[str],
    *,
    image: str,
    directory: str,
) -> dict[str, Any]:
    limits = _limits(order, type)
    container: dict[str, Any] = {
        "name": framework.container,
        "image": image,
        "command": list(words),
    }
    if directory:
        container["workingDir"] = directory
    if order.variables:
        container["env"] = [{"name": key, "value": order.variables[key]} for key in order.variables]
    if limits:
        container["resources"] = {"limits": limits}
    volumes, mounts = mounted(order)
    if not volumes:
        return {"containers": [container]}
    return {"containers": [{**container, "volumeMounts": mounts}], "volumes": volumes}


def _limits(order: TrainOrder, type: ReplicaType) -> dict[str, str]:
    own = _share(order, type)
    usual = 0 if type in _IDLE else order.gpu
    gpus = usual if own.gpu is None else own.gpu
    wanted = {
        "cpu": own.cpu or order.cpu,
        "memory": _quantity(own.memory or order.memory),
        _GPU: str(gpus) if gpus else "",
    }
    return {key: value for key, value in wanted.items() if value}


def _share(order: TrainOrder, type: ReplicaType) -> Share:
    named = (share for name, share in order.shares.items() if _plain(name) == _plain(type))
    return next(named, Share())


def _clean(policy: str) -> str | None:
    """The policy in its own letter case; what is none is left to be checked."""
    known = {one.lower(): str(one) for one in CleanPodPolicy}
    return known.get(policy.lower(), policy) or None


def _quantity(text: str) -> str:
    """``4GB`` and ``4 GiB`` as Kubernetes writes them; anything else is left to be checked."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGTP]i?)[bB]", text.strip())
    if found is None:
        return text
    unit = "k" if found[2] == "K" else found[2]
    return found[1] + unit


def _numbers(given: Mapping[str, int], framework: Framework) -> dict[ReplicaType, int]:
    """How many of which type, in the framework's order; those it cannot do without are added."""
    own = {_plain(one): one for one in framework.types}
    _check_types(given, framework)
    asked = {own[_plain(name)]: count for name, count in given.items()}
    needed = [one for one in framework.required if one not in asked]
    if not asked:
        needed += [one for one in _usual(framework) if one not in needed]
    # Somebody has to be there, also of a type whose number is 0 where a manifest gives none.
    asked |= {one: max(1, framework.defaults.get(one, 1)) for one in needed}
    return {one: asked[one] for one in framework.types if one in asked}


def _check_types(names: Iterable[str], framework: Framework) -> None:
    own = {_plain(one) for one in framework.types}
    for name in names:
        if _plain(name) not in own:
            raise _no_such_type(name, framework)


def _usual(framework: Framework) -> list[ReplicaType]:
    """What a job of nobody's numbers has besides what it needs: somebody who computes."""
    if not _IDLE.issuperset(framework.required):
        return []
    return [one for one in framework.types if one == "Worker"] or list(framework.types[:1])


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _flag(name: str) -> str:
    """``TunerTracker`` as its option is written: ``--tuner-tracker``."""
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _no_such_type(name: str, framework: Framework) -> UsageError:
    flags = [_flag(one) for one in framework.types]
    near = get_close_matches(f"--{name}", flags, 1)
    return UsageError(
        f"{framework.name} has no replicas of type {name}",
        hint=f"did you mean {near[0]}?" if near else f"it has {', '.join(flags)}",
    )


def fresh_name(script: str) -> str:
    """A name that no job has yet, after the script: ``train-x4k2p``."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")[:_LONGEST_STEM]
    stem = stem.strip("-") if stem[:1].isalpha() else f"job-{stem}".strip("-")
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
