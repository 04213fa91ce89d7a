"""Generate what a framework's nodes get, as templates: ``scripts/reference/node_templates.py``.

:mod:`danlu.replica_runtime.sagemaker` fills them in inside a container, where the nodes are known:
``$(RANK)``, ``$(SIZE)``, ``$(FIRST)`` (the first host), ``$(SLOTS)`` of a host, ``$(PROCESSES)`` of
all hosts, ``$(DIRECTORY)`` of the files, and ``$(HOSTS 1 ",")``, the hosts from the second one on
with commas in between. They come from the frameworks themselves: a job with numbers that occur
nowhere else is rendered, and the numbers and names are replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from danlu.training.framework import FieldRef, Framework
from danlu.training.frameworks.mpi.base import LAUNCHER, WORKER
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.training.types import Job, ReplicaId, ReplicaSpec, ReplicaType, RestartPolicy
from scripts.reference.pages import write_pages

PAGE = "src/danlu/replica_runtime/node_templates.json"
#: The port that SageMaker's own toolkits use (``SM_MASTER_PORT``).
PORT = 7777

_SIZE, _RANK, _SLOTS = 1009, 677, 503
_NUMBERS = {_SIZE: "SIZE", _RANK: "RANK", _SLOTS: "SLOTS", _SIZE * _SLOTS: "PROCESSES"}
_JOB = "danlu-nodes"
_DIRECTORY = "/danlu-directory"
_MARKED_HOST = re.compile("\0([0-9]+)\0")


def main() -> int:
    """Write the templates, and return the exit code."""
    templates = {framework.name: render_templates(framework) for framework in BUILT_IN_FRAMEWORKS}
    known = {name: value for name, value in templates.items() if value}
    text = json.dumps(known, indent=1, ensure_ascii=False) + "\n"
    return write_pages({PAGE: text}, sys.argv[1:])


def render_templates(framework: Framework) -> dict[str, Any]:
    """Return the variables of a ``single`` node, of the ``first`` of several and of an ``other``.

    ``files`` and the ``command`` before the program's are those of the first node, if there are
    any. Empty for a framework whose nodes are not alike, or must know their address.
    """
    if not framework.starts_processes and not framework.node_types:
        return {}
    job = build_job(framework, _SIZE)
    nodes = list_nodes(job)
    single = build_job(framework, 1)
    templates: dict[str, Any] = {}
    for name, owner, node in (
        ("single", single, list_nodes(single)[0]),
        ("first", job, nodes[0]),
        ("other", job, nodes[_RANK]),
    ):
        variables = framework.build_env(owner, node, NodeTopology(owner, framework))
        if any(isinstance(value, FieldRef) for _, value in variables):
            return {}
        templates[name] = {
            key: _mark_values(owner, framework, str(value)) for key, value in variables
        }
    topology = NodeTopology(job, framework)
    # Hosts of such a job stay the same, so nothing asks which of them run.
    unchanged = framework.files(job, topology, ()).items()
    files = dict(unchanged & framework.files(job, topology, nodes).items())
    if files:
        templates["files"] = {
            name: None if file.agent else _mark_values(job, framework, file.text)
            for name, file in sorted(files.items())
        }
    command = framework.wrap_command(job, nodes[0].type, ("$(COMMAND)",))
    if tuple(command) != ("$(COMMAND)",):
        templates["command"] = [_mark_values(job, framework, word) for word in command[:-1]]
    return templates


class NodeTopology:
    """The nodes by the names of their pods (:class:`danlu.training.types.Topology`)."""

    on_cluster = False

    def __init__(self, job: Job, framework: Framework, directory: str = _DIRECTORY) -> None:
        self._job = job
        self._framework = framework
        self._directory = directory

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """Return the name of the pod."""
        return self._framework.pod_name(self._job, replica)

    def port(self, replica: ReplicaId) -> int:
        """Return the one port of all nodes."""
        return PORT

    def directory(self, replica: ReplicaId) -> str:
        """Return the directory of the files."""
        return self._directory


def build_job(framework: Framework, size: int, *, slots: int = _SLOTS) -> Job:
    """Return a job of ``size`` nodes that are alike; with MPI the first is also the launcher."""
    types = framework.node_types or (LAUNCHER, WORKER)
    first, last = types[0], types[-1]
    if first != last and WORKER in types and len(types) > 2:
        first = last  # a job without a chief
    counts = {first: 1, last: size - 1} if first != last else {last: size}
    # MPI's launcher computes, too, if it asks for a GPU.
    resources = {"limits": {"nvidia.com/gpu": 1}} if framework.starts_processes else {}
    container = {"name": framework.container, "image": "", "resources": resources}
    template = {"spec": {"containers": [container]}}
    options = {"slotsPerWorker": slots} if framework.starts_processes else {}
    return Job(
        framework.kind,
        _JOB,
        {
            ReplicaType(type): ReplicaSpec(count, template, RestartPolicy.NEVER)
            for type, count in counts.items()
            if count
        },
        options=options,
        api_version=framework.api_version,
    )


def list_nodes(job: Job) -> Sequence[ReplicaId]:
    """Return the nodes in the order of their ranks."""
    return [node for type in job.replicas for node in job.replica_ids(type)]


def _mark_values(job: Job, framework: Framework, text: str) -> str:
    """Return the template that gives ``text`` for this job."""
    numbers = "|".join(map(str, sorted(_NUMBERS, reverse=True)))
    ranks = {framework.pod_name(job, node): rank for rank, node in enumerate(list_nodes(job))}
    names = rf"\b{_JOB}-(?:[a-z]+-[0-9]+|[a-z]+)\b"
    text = re.sub(names, lambda found: f"\0{ranks[found[0]]}\0", text)
    parts = _MARKED_HOST.split(text)
    texts, hosts = parts[::2], [int(host) for host in parts[1::2]]
    texts = [
        re.sub(rf"\b(?:{numbers})\b", lambda found: f"$({_NUMBERS[int(found[0])]})", part)
        for part in texts
    ]
    texts = [part.replace(_DIRECTORY, "$(DIRECTORY)") for part in texts]
    between = set(texts[1:-1])
    if len(hosts) > 1 and hosts == [*range(hosts[0], _SIZE)] and len(between) == 1:
        listed = f"$(HOSTS {hosts[0]} {json.dumps(between.pop())})"
        return f"{texts[0]}{listed}{texts[-1]}"
    if any(hosts):
        raise ValueError(f"cannot make a template of {text!r}")
    return "$(FIRST)".join(texts)


if __name__ == "__main__":
    sys.exit(main())
