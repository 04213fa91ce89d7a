"""Replicas as containers of danlu's embedded engine: images of the store, an OCI runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from danlu.builder.embedded.bytecode import bytecode_trees
from danlu.engine import embedded
from danlu.errors import DanluError, MachineError
from danlu.graph.imageconfig import ImageConfig, image_config_of
from danlu.jobs.local import proc
from danlu.jobs.local.cgroup import Group, Groups, enter_script
from danlu.jobs.local.containerforward import Forwards, proxy_ports
from danlu.jobs.local.containerprocess import (
    SHELL,
    THEN_PROGRAM,
    entering,
    mounts_of,
    process_file,
    process_of,
)
from danlu.jobs.local.containerprogram import Program, spawn
from danlu.jobs.local.network import JobNetwork
from danlu.jobs.local.types import Container, Exit, Running, Usage
from danlu.sandbox import children, runtime, trust, userns
from danlu.sandbox.prepare import prepared
from danlu.sandbox.types import Network, Process, Root
from danlu.sandbox.union import Union
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.human import format_size
from danlu.util.paths import Paths

__all__ = ["ContainerEngine", "enter"]

# Found by enter(), before the sandbox hides the tree of control groups.
_groups: Groups | None = None


def enter(paths: Paths) -> None:
    """Make this process one that can run containers; before any thread or event loop, once.

    An ordinary user's becomes root of a user namespace; files that it makes are still the user's.
    Raises :class:`MachineError` where namespaces are forbidden.
    """
    global _groups
    if _groups is None:
        _groups = Groups.find()
    userns.enter(paths)


class _Image(msgspec.Struct, frozen=True):
    """An image, ready to be started: its trees, lowest first, and what it says of itself."""

    trees: tuple[Path, ...]
    config: ImageConfig


class _Started(msgspec.Struct, frozen=True):
    """What a container is while it runs: its bundle, and the program it was given."""

    place: Path
    process: Process
    shell: bool
    container: Container
    group: Group | None
    needs: ExitStack


class ContainerEngine:
    """Runs the containers of one job; needs :func:`enter`.

    ``ports`` of this machine's loopback are found at the containers' own, and so are those of
    proxies that this process is told to use. Raises :class:`MachineError` where there is no OCI
    runtime.
    """

    def __init__(self, paths: Paths, config: Configuration, *, ports: Sequence[int] = ()) -> None:
        if not userns.entered():
            raise RuntimeError("container.enter() must be called before an engine is made")
        self._runtime = runtime.find(config.runtime)
        self._needs = ExitStack()
        self._store = self._needs.enter_context(Store.open(paths.store))
        self._needs.enter_context(self._store.lease())
        self._work = self._needs.enter_context(self._store.staging())
        self._trust = trust.gather(self._work)
        self._network = JobNetwork(self._work / "network")
        self._forwards = Forwards()
        self._ports = tuple(dict.fromkeys((*ports, *proxy_ports(os.environ))))
        self._images: dict[str, _Image] = {}
        self._started: dict[Program, _Started] = {}
        self._opening = anyio.Lock()
        self._open = False
        self._warnings: dict[str, None] = {}

    def warnings(self) -> Sequence[str]:
        """What of the containers started so far could not be kept, and what they cannot reach."""
        network = [self._network.warning] if self._network.warning else []
        return (*self._warnings, *network)

    async def start(self, container: Container, *, output: int) -> Running:
        """Start a container; see :class:`~danlu.jobs.local.types.Engine`.

        Raises :class:`MachineError` for a GPU, for an image that is not in the store, and where
        this machine lacks something; :class:`UsageError` for a user or a mount that cannot be.
        """
        if container.limits.gpus:
            raise MachineError(
                f"the container {container.name} asks for a GPU: only processes are given any yet",
                hint="run it with --host-python, or without GPUs",
            )
        network = await self._joined(container)
        needs = ExitStack()
        try:
            started = await to_thread.run_sync(self._prepare, container, network, needs)
            program = self._launch(started, output)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(needs.close)
            raise
        await program.begin()
        return program

    async def exec(
        self,
        running: Running,
        args: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> Running:
        """Run a further program in a container, as whom and where its own one runs."""
        assert isinstance(running, Program)
        started = self._started.get(running)
        inside = children.children(running.keeper)
        if started is None or not inside:
            raise MachineError("the container has ended", hint="see why: `danlu jobs show`")
        process = msgspec.structs.replace(
            started.process,
            args=tuple(args),
            environment={**started.process.environment, **environment},
        )
        entrances = started.group.entrances() if started.group and started.shell else []
        try:
            file = process_file(started.place, entering(process, len(entrances)))
            command = self._runtime.exec_command(
                started.place, inside[0], process=file, descriptors=len(entrances)
            )
            pid = spawn(command, stdin=stdin, stdout=stdout, stderr=stderr, more=entrances)
        finally:
            _close(entrances)
        program = Program(
            pid,
            finish=lambda code: _outcome(code, Path(f"{file}.log"), args[0]),
            measure=lambda: proc.usage(proc.descendants(pid)),
            beside=True,
        )
        running.others.append(program)
        return program

    async def close(self) -> None:
        """End all that runs, and take away the network and what lies in the store."""
        with anyio.CancelScope(shield=True):
            for program in tuple(self._started):
                await program.end(grace=0)
            await self._forwards.close()
            await to_thread.run_sync(self._network.close)
            await to_thread.run_sync(self._needs.close)

    # -- starting ---------------------------------------------------------------------------------

    async def _joined(self, container: Container) -> Network:
        """The network of its replica, made for the first of its containers."""
        replica, attempt = container.replica, container.attempt
        async with self._opening:
            if not self._open:
                await to_thread.run_sync(self._network.open)
                await self._network.connect()
                self._open = True
            join = partial(self._network.join, attempt=attempt, address=container.address)
            namespace, made = await to_thread.run_sync(join, replica)
            if made:
                await self._forwards.add(namespace, self._ports)
        return Network(namespace, container.host, container.hosts, self._network.resolver)

    def _prepare(self, container: Container, network: Network, needs: ExitStack) -> _Started:
        """Everything before the runtime starts; what has to be undone later is in ``needs``."""
        image = self._image(container.image)
        union = Union(image.trees)
        process = process_of(container, image.config, union)
        shell = union.entry(union.resolve(SHELL)) is not None
        group = self._group(container, needs)
        entrances = enter_script(group.count) if group and shell else ""
        place = needs.enter_context(
            prepared(
                process,
                Root(image.trees),
                mounts=mounts_of(container),
                trust=self._trust,
                network=network,
                work=self._work,
                shell=f"{entrances}{embedded.WAIT_ONE_STREAM}",
            )
        )
        return _Started(place, process, shell, container, group, needs)

    def _image(self, digest: str) -> _Image:
        known = self._images.get(digest)
        if known is not None:
            return known
        image = self._store.image(digest)
        stack = self._store.layers(image.layers) if image is not None else None
        if image is None or stack is None:
            raise MachineError(
                f"the image {digest} is not in the store",
                hint="build it with `danlu build`, or `danlu image pull` it by its name",
            )
        trees = (*(layer.tree for layer in stack), *bytecode_trees(self._store, image, stack))
        found = self._images[digest] = _Image(trees, image_config_of(image.config))
        return found

    def _group(self, container: Container, needs: ExitStack) -> Group | None:
        limits = container.limits
        missing = "control groups were not looked for" if _groups is None else _groups.missing
        if missing and (limits.cpu is not None or limits.memory is not None):
            self._warnings[f"resources: not enforced: {missing}"] = None
        if _groups is None:
            return None
        group = _groups.make(f"{container.mark}-{container.name}", limits)
        needs.callback(group.close)
        return group

    def _launch(self, started: _Started, output: int) -> Program:
        group = started.group
        entrances = group.entrances() if group else []
        count = len(entrances) if started.shell else 0
        command = self._runtime.command(started.place, descriptors=count)
        if entrances and not started.shell:
            # Then the runtime is in the group too: nobody inside can enter it.
            script = f"{enter_script(len(entrances))}{THEN_PROGRAM}"
            command = [SHELL, "-c", script, "danlu", *command]
        empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = spawn(command, stdin=empty, stdout=output, stderr=output, more=entrances)
        finally:
            _close([empty, *entrances])
        program = Program(
            pid,
            finish=lambda code: self._finish(program, code),
            measure=lambda: _usage(group, pid),
        )
        self._started[program] = started
        return program

    def _finish(self, program: Program, code: int) -> Exit:
        started = self._started.pop(program)
        end = _outcome(code, started.place / "log", started.process.args[0])
        if end.code and started.group is not None and started.group.memory_ran_out():
            limit = started.container.limits.memory
            what = f"its limit of {format_size(limit)}" if limit else "its limit"
            end = Exit(end.code, "OOMKilled", f"it used more memory than {what}")
        # What cannot be removed now goes with the staging directory.
        with suppress(OSError, DanluError):
            started.needs.close()
        return end


def _outcome(code: int, log: Path, program: str) -> Exit:
    code, reason = runtime.outcome(code, log, program)
    if reason:
        return Exit(code, "StartError", reason)
    return Exit(code, "Error" if code else "Completed")


def _usage(group: Group | None, keeper: int) -> Usage | None:
    used = group.usage() if group is not None else None
    first = children.program_inside(keeper)
    if used is not None or first is None:
        return used
    return proc.usage([first, *proc.descendants(first)])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
