"""Compare the variables and the templates of two jobs, of which one is a TrainJob."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from danlu.training.framework import FieldError, Framework
from danlu.training.frameworks.train_job import FRAMEWORK, NODE, PORT, find_policy
from danlu.training.pod_template import find_main_container
from danlu.training.types import Job, ReplicaId

#: A constant that several kinds of v1 set; in a TrainJob it is a variable of the container.
UNBUFFERED = "PYTHONUNBUFFERED"
#: Both kinds have a field for the number of processes.
_PROCESSES = "PET_NPROC_PER_NODE"


def find_differences(value: Any, other: Any) -> Iterator[str]:
    """Yield the paths at which two values differ, as deep as possible."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        for name in sorted({*value, *other}):
            for path in find_differences(value.get(name), other.get(name)):
                yield f".{name}{path}"
    elif isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        for index, members in enumerate(zip(value, other, strict=True)):
            for path in find_differences(*members):
                yield f"[{index}]{path}"
    elif value != other:
        yield ""


@dataclass(frozen=True)
class _RankTopology:
    """Hosts called by the rank of their node, so that variables of different kinds are equal."""

    ranks: Sequence[ReplicaId]
    on_cluster = False

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        return f"node {self.ranks.index(replica)}" if replica in self.ranks else str(replica)

    def port(self, replica: ReplicaId) -> int:
        return PORT

    def directory(self, replica: ReplicaId) -> str:
        return ""


@dataclass(frozen=True)
class VariableChanges:
    """How the variables of two jobs differ: names, with both values if they changed.

    ``new`` are all variables of the second job.
    """

    missing: tuple[str, ...]
    added: tuple[str, ...]
    new: tuple[str, ...]
    changed: Mapping[str, tuple[Any, Any]]

    def list_errors(self, path: str) -> Iterator[FieldError]:
        """Yield an error for each variable with another value."""
        for name, (old, new) in sorted(self.changed.items()):
            yield FieldError(path, f"{name} would be {new} instead of {old}")


def _rank_nodes(job: Job, framework: Framework) -> list[ReplicaId]:
    return [replica for type in framework.node_types for replica in job.replica_ids(type)]


def read_variables(job: Job, framework: Framework, replica: ReplicaId) -> dict[str, Any]:
    """Return what a framework sets in a replica."""
    topology = _RankTopology(_rank_nodes(job, framework))
    return dict(framework.build_env(job, replica, topology))


def compare_variables(
    before: tuple[Job, Framework], after: tuple[Job, Framework]
) -> VariableChanges:
    """Compare the variables of the first and the last node of two jobs."""
    old, new = dict[str, list[Any]](), dict[str, list[Any]]()
    for values, job_and_framework in ((old, before), (new, after)):
        nodes = _rank_nodes(*job_and_framework)
        for node in (nodes[0], nodes[-1]):
            for name, value in read_variables(*job_and_framework, node).items():
                values.setdefault(name, []).append(value)
    for name in (UNBUFFERED, _PROCESSES):
        old.pop(name, None)
        new.pop(name, None)
    changed = {}
    for name in old.keys() & new.keys():
        pairs = zip(old[name], new[name], strict=False)
        if different := [pair for pair in pairs if pair[0] != pair[1]]:
            changed[name] = different[0]
    missing = tuple(name for name in old if name not in new)
    added = tuple(name for name in new if name not in old)
    return VariableChanges(missing, added, tuple(new), changed)


def list_needed_variables(names: Sequence[str], job: Job) -> list[str]:
    """Return the variables that the program of a TrainJob may read from its container.

    A launcher sets some of them itself, but its command can mention them.
    """
    launched = find_policy(job.options["policy"]).launched if starts_launcher(job) else ()
    main = find_main_container(job.replicas[NODE].template, FRAMEWORK.container)
    text = json.dumps([main.get(field) for field in ("command", "args", "env")])
    mentioned = re.findall(r"\$[({]?(\w+)", text)
    return [name for name in names if name not in launched or name in mentioned]


def starts_launcher(job: Job) -> bool:
    """Return whether the command of a TrainJob starts a launcher of its policy."""
    main = find_main_container(job.replicas[NODE].template, FRAMEWORK.container)
    words = [*(main.get("command") or ()), *(main.get("args") or ())]
    names = {part.rpartition("/")[2] for word in words for part in str(word).split()}
    return not names.isdisjoint(find_policy(job.options["policy"]).launchers)
