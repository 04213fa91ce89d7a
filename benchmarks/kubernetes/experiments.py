"""The experiments, each on a fresh server; they return figures by name."""

from __future__ import annotations

import statistics
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks.kubernetes.jobs import (
    KINDS,
    SPACE,
    JobKind,
    JobLatencies,
    count,
    following,
    install,
    list_objects,
    submit,
    until,
    watch_resources,
)
from benchmarks.kubernetes.roles import pairs
from benchmarks.kubernetes.server import Requests, ServerExperiment, bench, requests_of
from danlu.kube.client import Client
from danlu.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICES
from danlu.kube.types import Object
from tests.ports import free_port

__all__ = ["Figures", "along", "bare", "created", "existing", "large"]

Figures = Mapping[str, float]
#: Requests that clients other than the operator make too, and those of the server itself.
_OTHERS = ("LIST", "WATCH")
_ITS_OWN = (
    "",
    "openapi",
    "leases",
    "apiservices",
    "flowschemas",
    "endpointslices",
    "endpoints",
    "tokenreviews",
)
#: What a job owns.
_OWNED = (PODS, SERVICES, CONFIG_MAPS)
_RUNS = 5.0
_PODS = 3
#: Events are written one after another, long after they occurred, so wait for them this long.
_REST_SECONDS = 300


@asynccontextmanager
async def _open_experiment(directory: Path) -> AsyncIterator[tuple[ServerExperiment, Client]]:
    with bench(directory) as made:
        async with Client(made.access, manager="benchmark") as client:
            yield made, client


async def bare(directory: Path, objects: Path, *, watches: bool = False) -> Figures:
    """Measure a client with 20 connections that creates the same pods, services and ConfigMaps.

    With ``watches``, they are watched meanwhile, as any controller has to.
    """
    async with _open_experiment(directory) as (made, client):
        await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": SPACE}}))
        watched = [kind.with_model(Object) for kind in _OWNED] if watches else []
        async with watch_resources(client, watched):
            before = made.cpu()
            began = time.monotonic()
            made.role("bare", str(objects))
            await anyio.to_thread.run_sync(made.wait, "bare")
            seconds = time.monotonic() - began
            figures = _measure_cpu(made, before)
        number = sum([await count(client, kind) for kind in _OWNED])
        return {"seconds": seconds, "objects": number, **figures}


async def created(directory: Path, kinds: Sequence[JobKind], jobs: int) -> Figures:
    """Start the operator with ``jobs`` existing jobs, and stop it after the last pod."""
    async with _open_experiment(directory) as (made, client):
        await install(client)
        await submit(client, kinds, jobs, _PODS)
        return await _measure_creation(made, client, kinds, jobs)


async def existing(
    directory: Path, kinds: Sequence[JobKind], jobs: int, *, objects: Path | None = None
) -> Figures:
    """Start the operator with ``jobs`` existing jobs; the kubelet starts after the last pod.

    The created pods, services and ConfigMaps are written to ``objects``.
    """
    async with _open_experiment(directory) as (made, client):
        await install(client)
        await submit(client, kinds, jobs, _PODS)
        async with following(client) as seen:
            asked, before = await requests_of(client), made.cpu()
            figures = await _measure_creation(made, client, kinds, jobs)
            if objects is not None:
                objects.write_bytes(pairs(await list_objects(client)))
            started = time.monotonic()
            made.role("kubelet", str(_RUNS))
            await _wait_for_success(made, seen, jobs)
            succeeded = time.monotonic() - started
            costs = await _measure_costs(made, client, asked, before, jobs=jobs)
            return {**figures, "succeeded": succeeded, **costs}


async def _measure_creation(
    made: ServerExperiment, client: Client, kinds: Sequence[JobKind], jobs: int
) -> dict[str, float]:
    """Start the operator; return when the last pod existed, and the CPU seconds until then."""
    before = made.cpu()
    began = time.monotonic()
    made.operator(free_port())
    await _wait_for_pods(made, client, kinds, jobs, _PODS)
    figures = {"last pod": time.monotonic() - began}
    spent = _measure_cpu(made, before)
    return figures | {f"creation {name}": seconds for name, seconds in spent.items()}


async def along(
    directory: Path, kinds: Sequence[JobKind], jobs: int, *, pause: float = 0.0
) -> Figures:
    """Submit ``jobs`` jobs while operator and kubelet run; also measure their latency."""
    async with _open_experiment(directory) as (made, client):
        await install(client)
        await _start_operator(made)
        made.role("kubelet", str(_RUNS))
        async with following(client, pods=True) as seen:
            asked, before = await requests_of(client), made.cpu()
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: submit(client, kinds, jobs, _PODS, pause=pause))
                await _wait_for_pods(made, client, kinds, jobs, _PODS)
                last = time.monotonic() - began
            await _wait_for_success(made, seen, jobs)
            figures = {"last pod": last, "succeeded": time.monotonic() - began}
            figures |= _summarize_latencies(seen)
            return {**figures, **await _measure_costs(made, client, asked, before, jobs=jobs)}


async def large(directory: Path, workers: int) -> Figures:
    """Submit a job of a master and ``workers`` workers while the operator runs."""
    async with _open_experiment(directory) as (made, client):
        await install(client)
        await _start_operator(made)
        async with following(client) as seen:
            asked, before = await requests_of(client), made.cpu()
            began = time.monotonic()
            kinds = (KINDS["PyTorchJob"],)
            await submit(client, kinds, 1, workers + 1)
            await _wait_for_pods(made, client, kinds, 1, workers + 1)
            figures = {"last pod": time.monotonic() - began}
            started = time.monotonic()
            made.role("kubelet", str(_RUNS))
            await _wait_for_success(made, seen, 1)
            figures["succeeded"] = time.monotonic() - started
            return {**figures, **await _measure_costs(made, client, asked, before, jobs=1)}


async def _start_operator(made: ServerExperiment) -> None:
    """Start the operator and wait until it is ready."""
    port = free_port()
    made.operator(port)

    def is_ready() -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return True
        except (OSError, urllib.error.URLError):
            return False

    async def ready() -> bool:
        return await anyio.to_thread.run_sync(is_ready)

    await until(ready, check=made.check)


async def _wait_for_pods(
    made: ServerExperiment, client: Client, kinds: Sequence[JobKind], jobs: int, pods: int
) -> None:
    """Wait until all pods and services of the jobs exist."""
    services = sum(kinds[index % len(kinds)].count_services(pods) for index in range(jobs))

    async def all_there() -> bool:
        found = (await count(client, PODS), await count(client, SERVICES))
        return found == (jobs * pods, services)

    await until(all_there, check=made.check)


async def _wait_for_success(made: ServerExperiment, seen: JobLatencies, jobs: int) -> None:
    async def all_have() -> bool:
        return len(seen.jobs) == jobs

    await until(all_have, check=made.check)


async def _measure_costs(
    made: ServerExperiment,
    client: Client,
    asked: Requests,
    before: Mapping[str, float],
    *,
    jobs: int,
) -> dict[str, float]:
    """Return the costs of the whole experiment, once requests have stopped."""
    requests = await _at_rest(client)
    grown: Requests = requests - asked
    ours = {place: number for place, number in grown.items() if _is_operators(*place)}
    events = sum(number for (_, resource), number in ours.items() if resource == "events")
    figures = {"requests": (sum(ours.values()) - events) / jobs, "events": events / jobs}
    figures |= {
        f"requests {verb} {resource}": number / jobs for (verb, resource), number in ours.items()
    }
    made.stop("operator")
    return {**figures, **_measure_cpu(made, before), "memory": made.peaks["operator"]}


async def _at_rest(client: Client) -> Requests:
    """Wait until only the server's own requests remain; return the counts."""
    last: Requests = await requests_of(client)
    for _ in range(_REST_SECONDS):
        await anyio.sleep(1.0)
        now = await requests_of(client)
        grown = now - last
        if not any(_is_operators(*place) for place in grown):
            return now
        last = now
    raise RuntimeError(f"requests did not stop within {_REST_SECONDS} seconds: {grown}")


def _is_operators(verb: str, resource: str) -> bool:
    """Return whether only the operator makes this request: others write pod statuses and jobs."""
    if verb in _OTHERS or resource.partition("/")[0] in _ITS_OWN:
        return False
    submitted = [("POST", kind.resource.plural) for kind in KINDS.values()]
    return (verb, resource) not in (("PATCH", "pods/status"), *submitted)


def _measure_cpu(made: ServerExperiment, before: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds of each process since ``before``."""
    return {f"cpu {name}": now - before.get(name, 0.0) for name, now in made.cpu().items()}


def _summarize_latencies(seen: JobLatencies) -> dict[str, float]:
    found = seen.latencies
    return {
        "latency median": statistics.median(found),
        "latency 99 %": found[int(len(found) * 0.99)],
        "latency most": found[-1],
    }
