"""The jobs of a sweep: the submission for a point, and how many fit on this machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.local.host_resources import available_cores, available_gpus
from danlu.jobs.types import Submission
from danlu.sweeps.labels import make_trial_labels
from danlu.sweeps.space import Point
from danlu.training.framework import Framework
from danlu.training.pod_template import (
    escape_references,
    find_main_container,
    list_containers,
    replace_container,
)
from danlu.training.types import Job, ReplicaSpec, ReplicaType
from danlu.util.quantity import parse_quantity

VARIABLE_PREFIX = "DANLU_SWEEP_"
_SHELLS = ("sh", "bash", "dash", "zsh", "ash")
_SCRIPT = "\0script"
_GPU_RESOURCE = "nvidia.com/gpu"


def build_trial_submission(
    submission: Submission,
    point: Point,
    *,
    framework: Framework,
    name: str,
    substituted: Collection[str] = (),
) -> Submission:
    """Return ``submission`` as job ``name`` with the values of ``point``.

    A value replaces ``{NAME}`` in the command of the replicas that run the script, and
    ``--NAME VALUE`` is appended unless the program gets the value as a whole word or after an
    ``=``: in ``--out out/{lr}`` it only names a path. Parameters in ``substituted`` are never
    appended. Each is also an environment variable (:func:`variable_name`). Raises
    :class:`UsageError` for a value that reaches no program: ``sh -c`` scripts take no arguments.
    """
    job = submission.job
    replicas = {
        type: _apply_point(spec, point, framework, substituted)
        if _runs_script(framework, job, type)
        else spec
        for type, spec in job.replicas.items()
    }
    changed = msgspec.structs.replace(job, name=name, replicas=replicas)
    labels = make_trial_labels(job.name, point)
    return msgspec.structs.replace(
        submission,
        job=changed,
        environment={
            **submission.environment,
            **{variable_name(axis): point[axis] for axis in point},
        },
        labels={**submission.labels, **labels},
    )


def variable_name(name: str) -> str:
    """Return the environment variable of an axis: ``DANLU_SWEEP_LEARNING_RATE``."""
    return VARIABLE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def _runs_script(framework: Framework, job: Job, type: ReplicaType) -> bool:
    # MPI's workers only wait: the launcher runs the script.
    return any(_SCRIPT in word for word in framework.wrap_command(job, type, (_SCRIPT,)))


def _apply_point(
    spec: ReplicaSpec, point: Point, framework: Framework, substituted: Collection[str]
) -> ReplicaSpec:
    main = find_main_container(spec.template, framework.container)
    command, args = _container_words(main, "command"), _container_words(main, "args")
    words = (*command, *args)
    shell = _runs_shell_script(words)
    missing = [name for name in point if not _passes_value(name, words, shell=shell)]
    _check_placeholders(missing, words, substituted, shell=shell)
    changed = _fill_placeholders(main, "command", command, point) | _fill_placeholders(
        main, "args", args, point
    )
    appended = [name for name in missing if name not in substituted]
    if appended and words:
        field = "args" if args or not command else "command"
        more = [word for name in appended for word in (f"--{name}", escape_references(point[name]))]
        changed[field] = [*changed[field], *more]
    if not changed:
        return spec
    template = replace_container(spec.template, {**main, **changed}, main)
    return msgspec.structs.replace(spec, template=template)


def _passes_value(name: str, words: Sequence[str], *, shell: bool) -> bool:
    """Whether the program gets the value itself, not only as a part of a path or another word."""
    variable = variable_name(name)
    whole = rf"\{{{re.escape(name)}\}}|\$\({variable}\)"
    if not shell:
        return any(re.search(rf"(?:^|=)(?:{whole})$", word) for word in words)
    # A script may do anything with a variable of its environment.
    alone = rf"(?<![^\s='\";&|(])(?:{whole})(?![^\s'\";&|)])|{variable}(?!\))"
    return any(re.search(alone, word) for word in words)


def _check_placeholders(
    missing: Sequence[str], words: Sequence[str], substituted: Collection[str], *, shell: bool
) -> None:
    for name in missing:
        used = any(f"{{{name}}}" in word or variable_name(name) in word for word in words)
        hint = f"insert {{{name}}} or ${variable_name(name)} where it belongs"
        if name in substituted:
            if words and not used:
                raise UsageError(f"the command does not use {name}", hint=hint)
        elif shell:
            how = "uses {} only inside another word" if used else "does not use {}"
            raise UsageError(f"the shell command {how.format(name)}", hint=hint)


def _container_words(container: Mapping[str, Any], field: str) -> tuple[str, ...]:
    return tuple(map(str, container.get(field) or ()))


def _fill_placeholders(
    container: Mapping[str, Any], field: str, words: Sequence[str], point: Point
) -> dict[str, list[str]]:
    if not words:
        return {}
    # In one pass: a value that looks like a placeholder must not be replaced.
    places = re.compile("|".join(re.escape(f"{{{name}}}") for name in point) or r"(?!)")

    def find_value(place: re.Match[str]) -> str:
        return escape_references(point[place[0][1:-1]])

    return {field: [places.sub(find_value, word) for word in words]}


def _runs_shell_script(words: Sequence[str]) -> bool:
    program = words[0].rpartition("/")[2] if words else ""
    return program in _SHELLS and any(re.fullmatch(r"-[a-z]*c", word) for word in words[1:3])


def max_parallel_jobs(job: Job, *, cores: int | None = None, gpus: int | None = None) -> int:
    """Return how many jobs like this one fit on this machine at once, at least one.

    A replica without a CPU request counts as one core. ``cores`` and ``gpus`` default to this
    machine's.
    """
    here = available_cores() if cores is None else cores
    # A request of 0 must not mean an unlimited number of jobs.
    counts = [here / max(_total_request(job, "cpu", otherwise=1.0), 0.001)]
    wanted = _total_request(job, _GPU_RESOURCE, otherwise=0.0)
    if wanted:
        counts.append((len(available_gpus()) if gpus is None else gpus) / wanted)
    return max(1, int(min(counts)))


def _total_request(job: Job, name: str, *, otherwise: float) -> float:
    """Return the total request of all replicas, counting ``otherwise`` for those without one."""
    return sum(
        spec.replicas * (sum(asked) if (asked := _container_requests(spec, name)) else otherwise)
        for spec in job.replicas.values()
    )


def _container_requests(spec: ReplicaSpec, name: str) -> list[float]:
    found = []
    for container in list_containers(spec.template):
        resources = container.get("resources") or {}
        both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        if name in both:
            found.append(parse_quantity(both[name]))
    return found
