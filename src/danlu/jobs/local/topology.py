"""Where the replicas of a job on this machine are reached, and what its pods are made of here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from danlu.jobs.local.ledger import Ledger, Seat
from danlu.jobs.local.state import Place
from danlu.jobs.types import Submission
from danlu.training.framework import Framework
from danlu.training.standing import wanted
from danlu.training.types import Job, ReplicaId, Topology

__all__ = [
    "LocalTopology",
    "Member",
    "is_contained",
    "members",
    "pod_name",
    "rendered",
    "topology_of",
]

FILES = "/etc/mpi"
"""Where containers find the framework's files."""


class Member(msgspec.Struct, frozen=True):
    """One replica: its pod's name, what others reach it by, and where it finds files."""

    name: str
    host: str
    address: str
    port: int
    directory: str


class LocalTopology:
    """The members of a job (:class:`danlu.training.types.Topology`)."""

    def __init__(self, members: Mapping[ReplicaId, Member]) -> None:
        self.members = members

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """The address of a process, the name of a container; both hold everywhere."""
        return self.members[replica].host

    def port(self, replica: ReplicaId) -> int:
        """The port that it got."""
        return self.members[replica].port

    def directory(self, replica: ReplicaId) -> str:
        """Where it finds the framework's files."""
        return self.members[replica].directory

    def hosts(self) -> dict[str, str]:
        """The addresses of all, by name."""
        return {one.name: one.address for one in self.members.values()}

    def find(self, name: str) -> ReplicaId | None:
        """The replica that ``name`` means: that of its pod, the first part of it, its address."""
        short = name.partition(".")[0]
        for id, one in self.members.items():
            if name in (one.host, one.address, str(id)) or short == one.name:
                return id
        return None


def members(job: Job) -> Iterator[ReplicaId]:
    """All replicas a job is to have, in order."""
    for type in job.replicas:
        yield from (ReplicaId(type, index) for index in range(wanted(job, type)))


def pod_name(job: Job, replica: ReplicaId) -> str:
    """What a replica is called on a cluster: the launcher of an MPIJob has no number there."""
    return f"{job.name}-launcher" if replica.type == "Launcher" else f"{job.name}-{replica}"


def topology_of(
    submission: Submission, job: Job, *, framework: Framework, ledger: Ledger, place: Place
) -> LocalTopology:
    """Where all replicas of ``job`` are, by the ledger; the same for those that had a place."""
    everyone = list(members(job))
    contained = {id for id in everyone if is_contained(submission, framework, id)}
    seats = ledger.seats(
        [str(id) for id in everyone if id not in contained],
        wanted=framework.port,
        common=framework.common_port,
    )
    found = {}
    for number, id in enumerate(everyone):
        name = pod_name(job, id)
        if id in contained:
            address, port = _container_address(number), _declared_port(job, framework, id)
            found[id] = Member(name, name, address, port, FILES)
        else:
            seat: Seat = seats[str(id)]
            found[id] = Member(name, seat.address, seat.address, seat.port, str(place.files))
    return LocalTopology(found)


def _container_address(number: int) -> str:
    from danlu.jobs.local.network import address

    return address(number)


def is_contained(submission: Submission, framework: Framework, replica: ReplicaId) -> bool:
    """Whether the main container of a replica is one of the engine's, not a process."""
    template = submission.job.replicas[replica.type].template
    return main_container(template, framework).get("image") in submission.images


def main_container(template: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    """The container whose end is the replica's: the framework's, else the first."""
    containers: Sequence[Mapping[str, Any]] = template["spec"]["containers"]
    named = (one for one in containers if one.get("name") == framework.container)
    return next(named, containers[0])


def _declared_port(job: Job, framework: Framework, replica: ReplicaId) -> int:
    container = main_container(job.replicas[replica.type].template, framework)
    for port in container.get("ports") or ():
        if port.get("name") == framework.port_name:
            return int(port["containerPort"])
    return framework.port


def rendered(
    job: Job, framework: Framework, replica: ReplicaId, topology: Topology
) -> Mapping[str, Any]:
    """The pod of a replica, without what a cluster alone needs (containers that wait for names)."""
    from danlu.training.rendering import render_pod

    pod: Mapping[str, Any] = render_pod(job, framework, replica, topology, decorated=False)
    pod = {**pod, "metadata": {**pod["metadata"], "name": pod_name(job, replica)}}
    main = main_container(pod, framework)
    if main.get("command") or main.get("args"):
        return pod
    command = list(framework.launch(job, replica.type, ()))
    given = {**main, "command": command}
    containers = [given if one is main else one for one in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}
