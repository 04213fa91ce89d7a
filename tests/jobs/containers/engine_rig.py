"""Start containers of a small busybox image with the engine, as a supervisor does."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from danlu.engine.types import RunningContainer
from danlu.jobs.local.container_engine import ContainerEngine
from danlu.jobs.local.job_network import replica_address
from danlu.jobs.local.pod import ReplicaContainer
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sandbox.types import ContainerExit
from danlu.store import Store
from danlu.training.types import ReplicaId, ReplicaType
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.sandbox.namespace_process import busybox

T = TypeVar("T")

WORKER = ReplicaType("Worker")
_MORE_APPLETS = (
    *("awk", "df", "find", "gzip", "mkfifo", "nc", "nslookup", "seq", "sha256sum", "tar", "wget"),
)


def paths_of(home: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(home)})


def image(
    home: Path, *, shell: bool = True, metadata: Mapping[str, str] | None = None, **config: Any
) -> str:
    """Create a busybox image in the store of ``home`` and return its digest."""
    return create_image(paths_of(home), shell=shell, metadata=metadata, **config)


def create_image(
    paths: Paths, *, shell: bool = True, metadata: Mapping[str, str] | None = None, **config: Any
) -> str:
    """Create a busybox image in the store of an account and return its digest."""
    with Store.open(paths.store) as store, store.staging() as work:
        tree = busybox(work / "tree")
        for name in _MORE_APPLETS:
            (tree / "bin" / name).symlink_to("busybox")
        if not shell:
            (tree / "bin/sh").unlink()
        # Files of an ordinary user are root's in its containers.
        summary = write_layer(tree, None, normalise=NormalizeOptions(uid=0, gid=0))
        layer = store.commit_layer(tree, summary, created_by="busybox")
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }
        data = json.dumps(document).encode()
        return store.put_image(data, [layer.diff_id], metadata=metadata).digest


class EngineRig:
    """An engine and an image, to run shell scripts in containers."""

    def __init__(self, engine: ContainerEngine, digest: str) -> None:
        self.engine = engine
        self.digest = digest
        self._count = 0
        self._output: dict[RunningContainer, int] = {}

    async def start(self, script: str, index: int = 0, **fields: Any) -> RunningContainer:
        return await self.start_words(("sh", "-c", script), index, **fields)

    async def start_words(
        self, args: tuple[str, ...], index: int = 0, **fields: Any
    ) -> RunningContainer:
        self._count += 1
        value: dict[str, Any] = {
            "attempt": 0,
            "name": "main",
            "mark": f"mark.{self._count}",
            "environment": {},
            "directory": "",
            "image": self.digest,
            "host": f"job-worker-{index}",
            "address": replica_address(index),
            "hosts": {f"job-worker-{index}": replica_address(index) for index in range(3)},
            **fields,
        }
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            container = ReplicaContainer(replica=ReplicaId(WORKER, index), args=args, **value)
            running = await self.engine.start(container, output=writing)
        finally:
            os.close(writing)
        self._output[running] = reading
        return running

    async def read_output(self, running: RunningContainer, size: int = 1 << 16) -> str:
        """Read the container's next output."""
        return (await to_thread.run_sync(os.read, self._output[running], size)).decode()

    async def run_script(
        self, script: str, index: int = 0, **fields: Any
    ) -> tuple[ContainerExit, str]:
        """Run a script; return its exit and output, which must fit into a pipe."""
        running = await self.start(script, index, **fields)
        end = await running.wait()
        return end, await self.read_output(running)

    async def exec(self, running: RunningContainer, *args: str) -> tuple[ContainerExit, str]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with open(os.devnull, "rb") as nothing, open(reading, "rb") as output:
            try:
                streams = nothing.fileno(), writing, writing
                program = await self.engine.exec(running, args, streams)
            finally:
                os.close(writing)
            return await program.wait(), output.read().decode()


@asynccontextmanager
async def rig(
    home: Path,
    *,
    ports: tuple[int, ...] = (),
    config: Configuration | None = None,
    **image_fields: Any,
) -> AsyncIterator[EngineRig]:
    digest = image(home, **image_fields)
    engine = ContainerEngine(paths_of(home), config or Configuration(), ports=ports)
    try:
        yield EngineRig(engine, digest)
    finally:
        await engine.close()


def run_within(home: Path, act: Callable[[EngineRig], Awaitable[T]], **fields: Any) -> T:
    """Call ``act`` with a rig and return its result; must be called in a namespace."""

    async def run() -> T:
        with anyio.fail_after(60):
            async with rig(home, **fields) as result:
                return await act(result)

    return anyio.run(run)
