"""Those who load the server, each a process: ``python -m benchmarks.kubernetes.roles NAME …``.

``kubelet ACCESS SECONDS`` plays every pod of the server: it runs at once and succeeds after so
many seconds. ``bare ACCESS FILE`` creates the objects of a file, with 20 connections and nothing
else: the yardstick. ``operator ACCESS PORT`` is the operator, healthy at that port; its profile
goes to the file that DANLU_BENCH_PROFILE names.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.kubernetes.server import read_access
from danlu.kube.access import Access
from danlu.testing.kubernetes import Kubelet, completes
from tests.kube.servers import TOKEN

CONNECTIONS = 20


async def kubelet(access: Access, seconds: float) -> None:
    """Play all pods until this process is ended."""
    behaviour = completes(seconds)
    async with Kubelet(access, behaviour=behaviour, binds=False, connections=CONNECTIONS):
        await asyncio.Event().wait()


async def bare(access: Access, file: Path) -> None:
    """Create what the file has: a line with the path, a line with the object's bytes, by turns."""
    lines = file.read_bytes().splitlines()
    objects = deque(zip(lines[::2], lines[1::2], strict=True))
    context = ssl.create_default_context(cadata=access.ca.decode())
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=context)
    async with (
        aiohttp.ClientSession(access.server, connector=connector, headers=headers) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CONNECTIONS):
            group.create_task(_create(session, objects))


async def _create(session: aiohttp.ClientSession, objects: deque[tuple[bytes, bytes]]) -> None:
    while objects:
        path, body = objects.popleft()
        async with session.post(path.decode(), data=body) as response:
            await response.read()
            if response.status != 201:
                raise RuntimeError(f"{path.decode()}: {response.status}")


async def operator(access: Access, port: int) -> None:
    """The operator, as ``danlu operator run`` starts it."""
    from danlu.operator.assembly import run
    from danlu.operator.types import OperatorSettings

    here = f"127.0.0.1:{port}"
    await run(access, OperatorSettings(health_address=here, metrics_address=""))


def pairs(objects: list[tuple[str, dict[str, object]]]) -> bytes:
    """A file for :func:`bare`."""
    return b"".join(
        path.encode() + b"\n" + msgspec.json.encode(document) + b"\n" for path, document in objects
    )


def profiled(work: Callable[[], None]) -> None:
    """Do the work, with a profile where one is wanted."""
    file = os.environ.get("DANLU_BENCH_PROFILE")
    if not file:
        work()
        return
    import cProfile

    profile = cProfile.Profile()
    try:
        profile.runcall(work)
    finally:
        profile.dump_stats(file)


def main() -> None:
    role, config, argument = sys.argv[1:4]
    access = read_access(Path(config))
    if role == "kubelet":
        asyncio.run(kubelet(access, float(argument)))
    elif role == "operator":
        profiled(lambda: asyncio.run(operator(access, int(argument))))
    else:
        asyncio.run(bare(access, Path(argument)))


if __name__ == "__main__":
    main()
