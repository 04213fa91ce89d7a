"""The experiments, each on a fresh server: figures by name."""

from __future__ import annotations

import statistics
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks.kubernetes.jobs import (
    JOBS,
    SPACE,
    Followed,
    count,
    following,
    install,
    manifest,
    pods_and_services,
    submit,
    until,
)
from benchmarks.kubernetes.roles import pairs
from benchmarks.kubernetes.server import Bench, Requests, bench, requests_of
from danlu.kube.client import Client
from danlu.kube.resources import NAMESPACES, PODS, SERVICES
from tests.kube.servers import free_port

__all__ = ["Figures", "along", "bare", "existing", "large"]

Figures = Mapping[str, float]
#: What is asked of the server by others than the operator, and what it asks itself.
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
_RUNS = 5.0
#: Events are told one after another, long after what they tell of.
_REST_SECONDS = 300


@asynccontextmanager
async def _experiment(directory: Path) -> AsyncIterator[tuple[Bench, Client]]:
    with bench(directory) as made:
        async with Client(made.access, manager="benchmark") as client:
            yield made, client


async def bare(directory: Path, objects: Path) -> Figures:
    """The yardstick: a client of 20 connections that creates the same pods and services."""
    async with _experiment(directory) as (made, client):
        await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": SPACE}}))
        before = made.cpu()
        began = time.monotonic()
        made.role("bare", str(objects))
        await anyio.to_thread.run_sync(made.wait, "bare")
        seconds = time.monotonic() - began
        number = await count(client, PODS) + await count(client, SERVICES)
        return {"seconds": seconds, "objects": number, **_spent(made, before)}


async def existing(directory: Path, jobs: int, *, objects: Path | None = None) -> Figures:
    """So many jobs are there when the operator starts; the kubelet begins after the last pod.

    The pods and services that were made are written to ``objects``.
    """
    async with _experiment(directory) as (made, client):
        await install(client)
        await submit(client, jobs)
        async with following(client) as seen:
            asked, before = await requests_of(client), made.cpu()
            began = time.monotonic()
            made.operator(free_port())
            await _made(made, client, 3 * jobs)
            figures = {"last pod": time.monotonic() - began}
            figures |= {f"making {name}": spent for name, spent in _spent(made, before).items()}
            if objects is not None:
                objects.write_bytes(pairs(await pods_and_services(client)))
            started = time.monotonic()
            made.role("kubelet", str(_RUNS))
            await _succeeded(made, seen, jobs)
            figures["succeeded"] = time.monotonic() - started
            return {**figures, **await _costs(made, client, asked, before, jobs=jobs)}


async def along(directory: Path, jobs: int, *, pause: float = 0.0) -> Figures:
    """So many jobs are submitted while operator and kubelet run; their latency is seen too."""
    async with _experiment(directory) as (made, client):
        await install(client)
        await _ready(made)
        made.role("kubelet", str(_RUNS))
        async with following(client, pods=True) as seen:
            asked, before = await requests_of(client), made.cpu()
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: submit(client, jobs, pause=pause))
                await _made(made, client, 3 * jobs)
                last = time.monotonic() - began
            await _succeeded(made, seen, jobs)
            figures = {"last pod": last, "succeeded": time.monotonic() - began}
            figures |= {"start": before["operator"], **_latencies(seen)}
            return {**figures, **await _costs(made, client, asked, before, jobs=jobs)}


async def large(directory: Path, workers: int) -> Figures:
    """One job of a master and so many workers, submitted while the operator runs."""
    async with _experiment(directory) as (made, client):
        await install(client)
        await _ready(made)
        async with following(client) as seen:
            asked, before = await requests_of(client), made.cpu()
            began = time.monotonic()
            await client.create(JOBS, manifest("job-0", workers))
            await _made(made, client, workers + 1)
            figures = {"last pod": time.monotonic() - began}
            started = time.monotonic()
            made.role("kubelet", str(_RUNS))
            await _succeeded(made, seen, 1)
            figures["succeeded"] = time.monotonic() - started
            return {**figures, **await _costs(made, client, asked, before, jobs=1)}


async def _ready(made: Bench) -> None:
    """Start the operator and wait until it is ready."""
    port = free_port()
    made.operator(port)

    def asked() -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return True
        except (OSError, urllib.error.URLError):
            return False

    async def ready() -> bool:
        return await anyio.to_thread.run_sync(asked)

    await until(ready, check=made.check)


async def _made(made: Bench, client: Client, replicas: int) -> None:
    """Wait until so many pods, and as many services, are there."""

    async def all_there() -> bool:
        return await count(client, PODS) == replicas and await count(client, SERVICES) == replicas

    await until(all_there, check=made.check)


async def _succeeded(made: Bench, seen: Followed, jobs: int) -> None:
    async def all_have() -> bool:
        return len(seen.jobs) == jobs

    await until(all_have, check=made.check)


async def _costs(
    made: Bench, client: Client, asked: Requests, before: Mapping[str, float], *, jobs: int
) -> dict[str, float]:
    """What the whole experiment has taken, when nothing is asked any more."""
    requests = await _at_rest(client)
    grown: Requests = requests - asked
    ours = {place: number for place, number in grown.items() if _is_operators(*place)}
    events = sum(number for (_, resource), number in ours.items() if resource == "events")
    figures = {"requests": (sum(ours.values()) - events) / jobs, "events": events / jobs}
    figures |= {
        f"requests {verb} {resource}": number / jobs for (verb, resource), number in ours.items()
    }
    made.stop("operator")
    return {**figures, **_spent(made, before), "memory": made.peaks["operator"]}


async def _at_rest(client: Client) -> Requests:
    """The server's count once no more than its own are added to it."""
    last: Requests = await requests_of(client)
    for _ in range(_REST_SECONDS):
        await anyio.sleep(1.0)
        now = await requests_of(client)
        grown = now - last
        if not any(_is_operators(*place) for place in grown):
            return now
        last = now
    raise RuntimeError(f"still being asked after {_REST_SECONDS} seconds: {grown}")


def _is_operators(verb: str, resource: str) -> bool:
    """Whether only the operator asks that: the kubelet writes statuses of pods, we make jobs."""
    if verb in _OTHERS or resource.partition("/")[0] in _ITS_OWN:
        return False
    return (verb, resource) not in (("PATCH", "pods/status"), ("POST", "pytorchjobs"))


def _spent(made: Bench, before: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds of each since then."""
    return {f"cpu {name}": now - before.get(name, 0.0) for name, now in made.cpu().items()}


def _latencies(seen: Followed) -> dict[str, float]:
    found = seen.latencies
    return {
        "latency median": statistics.median(found),
        "latency 99 %": found[int(len(found) * 0.99)],
        "latency most": found[-1],
    }
