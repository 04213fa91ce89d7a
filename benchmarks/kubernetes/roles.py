"""Clients of the server in separate processes: ``python -m benchmarks.kubernetes.roles NAME …``.

``kubelet ACCESS SECONDS`` simulates a kubelet: every pod runs at once and succeeds after SECONDS.
``bare ACCESS FILE`` creates the objects in a file over 20 connections, as a reference.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import deque
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.kubernetes.server import read_access
from danlu.kube.config import ClusterConfig
from tests.fakes.kubernetes import FakeKubelet, complete_after
from tests.kube.servers import TOKEN

CONNECTIONS = 20


async def kubelet(access: ClusterConfig, seconds: float) -> None:
    """Simulate all pods until this process is terminated."""
    behaviour = complete_after(seconds)
    async with FakeKubelet(access, behaviour=behaviour, binds=False, connections=CONNECTIONS):
        await asyncio.Event().wait()


async def bare(access: ClusterConfig, file: Path) -> None:
    """Create the objects in the file of :func:`pairs`."""
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
            group.create_task(_create_objects(session, objects))


async def _create_objects(
    session: aiohttp.ClientSession, objects: deque[tuple[bytes, bytes]]
) -> None:
    while objects:
        path, body = objects.popleft()
        async with session.post(path.decode(), data=body) as response:
            await response.read()
            if response.status != 201:
                raise RuntimeError(f"{path.decode()}: {response.status}")


def pairs(objects: list[tuple[str, dict[str, object]]]) -> bytes:
    """Return the file for :func:`bare`: for each object a line with its path, then its JSON."""
    return b"".join(
        path.encode() + b"\n" + msgspec.json.encode(document) + b"\n" for path, document in objects
    )


def main() -> None:
    role, config, argument = sys.argv[1:4]
    access = read_access(Path(config))
    if role == "kubelet":
        asyncio.run(kubelet(access, float(argument)))
    else:
        asyncio.run(bare(access, Path(argument)))


if __name__ == "__main__":
    main()
