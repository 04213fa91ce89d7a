"""Where the replicas of a job on this machine are reached, and their pods as rendered for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.engine.resource_allocator import ResourceAllocator
from danlu.jobs.local.job_directory import JobDirectory
from danlu.jobs.types import Submission
from danlu.training.framework import Framework
from danlu.training.pod_template import find_main_container, replace_container
from danlu.training.rendering import render_pod
from danlu.training.replicas import replica_ids
from danlu.training.topology import declared_port
from danlu.training.types import Job, ReplicaId, Topology


class ReplicaLocation(msgspec.Struct, frozen=True):
    """One replica: its pod's name, its host as other replicas address it, its files.

    ``aliases`` are the names that its Service has on a cluster.
    """

    name: str
    host: str
    address: str
    port: int
    directory: str
    aliases: tuple[str, ...] = ()


class LocalTopology:
    """The locations of a job's replicas (:class:`danlu.training.types.Topology`)."""

    on_cluster = False

    def __init__(self, locations: Mapping[ReplicaId, ReplicaLocation]) -> None:
        self.locations = locations

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """Return a process's IP address or a container's name; ``qualified`` has no effect."""
        return self.locations[replica].host

    def port(self, replica: ReplicaId) -> int:
        """Return the port assigned to a replica."""
        return self.locations[replica].port

    def directory(self, replica: ReplicaId) -> str:
        """Return where a replica finds the framework's files."""
        return self.locations[replica].directory

    def hosts(self) -> dict[str, str]:
        """Return the addresses of all replicas by name."""
        return {
            name: location.address
            for location in self.locations.values()
            for name in (location.name, *location.aliases)
        }

    def find_replica(self, name: str) -> ReplicaId | None:
        """Return the replica with this id, address, or pod name (possibly with a domain)."""
        short = name.partition(".")[0]
        for id, location in self.locations.items():
            if name in (location.host, location.address, str(id)) or short == location.name:
                return id
        return None


def build_topology(
    submission: Submission,
    job: Job,
    *,
    framework: Framework,
    allocator: ResourceAllocator,
    job_dir: JobDirectory,
) -> LocalTopology:
    """Return the locations of all replicas; those that already had one keep it."""
    # The network needs the sandbox, which jobs of processes never load.
    from danlu.jobs.local.job_network import replica_address

    replicas = list(replica_ids(job, framework))
    contained = {id for id in replicas if runs_in_container(submission, framework, id)}
    endpoints = allocator.allocate_endpoints(
        [str(id) for id in replicas if id not in contained],
        wanted=framework.port,
        common=framework.single_port,
    )
    locations = {}
    for number, id in enumerate(replicas):
        name = framework.pod_name(job, id)
        if id in contained:
            address, port = replica_address(number), declared_port(job, id, framework)
            directory, aliases = framework.files_directory, _list_aliases(job, framework, name)
            locations[id] = ReplicaLocation(name, name, address, port, directory, aliases)
        else:
            endpoint = endpoints[str(id)]
            address, port = endpoint.address, endpoint.port
            locations[id] = ReplicaLocation(name, address, address, port, str(job_dir.files))
    return LocalTopology(locations)


def _list_aliases(job: Job, framework: Framework, name: str) -> tuple[str, ...]:
    subdomain = framework.subdomain(job)
    service, namespace = f"{name}.{subdomain}" if subdomain else name, f"{job.namespace}.svc"
    ends = ("", f".{job.namespace}", f".{namespace}", f".{namespace}.cluster.local")
    return tuple(f"{service}{end}" for end in ends if f"{service}{end}" != name)


def runs_in_container(submission: Submission, framework: Framework, replica: ReplicaId) -> bool:
    """Return whether the main container of a replica is a container rather than a process."""
    template = submission.job.replicas[replica.type].template
    return find_main_container(template, framework.container).get("image") in submission.images


def render_local_pod(
    job: Job, framework: Framework, replica: ReplicaId, topology: Topology
) -> Mapping[str, Any]:
    """Render a replica's pod without what only a cluster needs (init containers that wait)."""
    pod: Mapping[str, Any] = render_pod(job, framework, replica, topology, for_cluster=False)
    main = find_main_container(pod, framework.container)
    given = [*(main.get("command") or ()), *(main.get("args") or ())]
    command = [*framework.adapt_command(job, replica.type, given)]
    if command == given:
        return pod
    return replace_container(pod, {**main, "command": command, "args": []}, main)
