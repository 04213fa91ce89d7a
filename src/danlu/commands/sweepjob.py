"""The jobs of a sweep: a submission at one point, and how many of them fit on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import UsageError
from danlu.training.frameworks.pods import containers, main_container, with_containers

if TYPE_CHECKING:
    from danlu.commands.sweepspace import Point
    from danlu.jobs.types import Submission
    from danlu.training.framework import Framework
    from danlu.training.types import Job, ReplicaSpec, ReplicaType

__all__ = ["PREFIX", "at_point", "fitting", "variable"]

PREFIX = "DANLU_SWEEP_"
_SHELLS = ("sh", "bash", "dash", "zsh", "ash")
_SCRIPT = "\0script"
_GPU = "nvidia.com/gpu"


def at_point(
    submission: Submission, point: Point, *, framework: Framework, name: str
) -> Submission:
    """``submission`` as the job ``name`` that runs at ``point``.

    A value takes the place of ``{NAME}`` in the words of the replicas that run the script; where
    it stands nowhere, ``--NAME VALUE`` follows them. Each is a variable as well
    (:func:`variable`). Raises :class:`UsageError` for a shell's script that names neither: what
    follows that is not the program's.
    """
    job = submission.job
    replicas = {
        one: _spec(spec, point, framework) if _runs_script(framework, job, one) else spec
        for one, spec in job.replicas.items()
    }
    changed = msgspec.structs.replace(job, name=name, replicas=replicas)
    labels = {f"sweep.{key}": value for key, value in point.items()}
    return msgspec.structs.replace(
        submission,
        job=changed,
        environment={**submission.environment, **{variable(one): point[one] for one in point}},
        labels={**submission.labels, "sweep": job.name, **labels},
    )


def variable(name: str) -> str:
    """The variable that holds the value of an axis: ``DANLU_SWEEP_LEARNING_RATE``."""
    return PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def _runs_script(framework: Framework, job: Job, type: ReplicaType) -> bool:
    # MPI's workers wait for a launcher that runs it: their command is not the script's.
    return any(_SCRIPT in word for word in framework.launch(job, type, (_SCRIPT,)))


def _spec(spec: ReplicaSpec, point: Point, framework: Framework) -> ReplicaSpec:
    main = main_container(spec.template, framework.container)
    command, args = _words(main, "command"), _words(main, "args")
    whole = " ".join((*command, *args))
    rest = {
        name: value
        for name, value in point.items()
        if f"{{{name}}}" not in whole and variable(name) not in whole
    }
    changed = _filled(main, "command", command, point) | _filled(main, "args", args, point)
    if rest and (command or args):
        _check_shell((*command, *args), rest)
        field = "args" if args or not command else "command"
        more = [word for name, value in rest.items() for word in (f"--{name}", value)]
        changed[field] = [*changed[field], *more]
    if not changed:
        return spec
    template = with_containers(spec.template, {**main, **changed}, main)
    return msgspec.structs.replace(spec, template=template)


def _words(container: Mapping[str, Any], field: str) -> tuple[str, ...]:
    return tuple(map(str, container.get(field) or ()))


def _filled(
    container: Mapping[str, Any], field: str, words: Sequence[str], point: Point
) -> dict[str, list[str]]:
    if not words:
        return {}
    # All at once: a value that looks like another's place stays a value.
    places = re.compile("|".join(re.escape(f"{{{name}}}") for name in point) or r"(?!)")
    return {field: [places.sub(lambda found: point[found[0][1:-1]], word) for word in words]}


def _check_shell(words: Sequence[str], rest: Mapping[str, str]) -> None:
    program = words[0].rpartition("/")[2]
    if program in _SHELLS and any(re.fullmatch(r"-[a-z]*c", word) for word in words[1:3]):
        name = next(iter(rest))
        raise UsageError(
            f"where in the shell's command does {name} belong?",
            hint=f"write {{{name}}} or ${variable(name)} there",
        )


def fitting(job: Job, *, cores: int | None = None, gpus: int | None = None) -> int:
    """How many jobs like this one this machine runs side by side, at least one.

    A replica that asks for no CPU counts as a core. This machine's are counted where ``cores`` and
    ``gpus`` are None.
    """
    here = len(os.sched_getaffinity(0)) if cores is None else cores
    counts = [here / max(_wanted(job, "cpu", otherwise=1.0), 0.001)]
    wanted = _wanted(job, _GPU, otherwise=0.0)
    if wanted:
        counts.append((_gpus() if gpus is None else gpus) / wanted)
    return max(1, int(min(counts)))


def _wanted(job: Job, name: str, *, otherwise: float) -> float:
    """What all replicas of a job ask for, ``otherwise`` for each that says nothing."""
    return sum(
        spec.replicas * (sum(asked) if (asked := _asked(spec, name)) else otherwise)
        for spec in job.replicas.values()
    )


def _asked(spec: ReplicaSpec, name: str) -> list[float]:
    from danlu.jobs.local.quantity import quantity

    found = []
    for one in containers(spec.template):
        resources = one.get("resources") or {}
        both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        if name in both:
            found.append(quantity(both[name]))
    return found


def _gpus() -> int:
    from danlu.jobs.local.gpus import present

    return len(present())
