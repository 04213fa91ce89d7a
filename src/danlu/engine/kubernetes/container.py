"""The container of an environment in a pod."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
from pathlib import Path

import anyio

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.kubernetes.pod import EnvironmentPod, open_pod
from danlu.engine.kubernetes.program import (
    KubernetesProgram,
    PodShell,
    run_in_thread,
    start_program,
)
from danlu.engine.kubernetes.scripts import RENEW_SCRIPT
from danlu.engine.kubernetes.server_copy import copy_servers
from danlu.engine.kubernetes.settings import CONTAINER, PodSettings, read_settings
from danlu.engine.stream_copy import ProgramDescriptors
from danlu.engine.types import EnvironmentProgram, ExecRequest, PortOpener
from danlu.errors import DanluError, OutsideError, TemporaryError, UsageError
from danlu.kube.errors import ConnectionLost
from danlu.kube.pod_streams import PodConnection, PodExec, open_pod_exec, open_pod_port
from danlu.project_sync.project_copy import ProjectCopy
from danlu.project_sync.types import STAGE_NAME, CopyPlace
from danlu.sandbox.types import PROJECT_DIRECTORY, ContainerExit

_RENEW_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_STOP_GRACE = 2
_RECORDS_FILE = "project-files.json"
_ENDED_CODE = 137

logger = logging.getLogger(__name__)


class KubernetesStarter:
    """Runs programs in the pods of environments, which the command that starts them has created."""

    def __init__(self, vscode_servers: Path) -> None:
        self._vscode_servers = vscode_servers

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> KubernetesContainer:
        """Take over the environment's pod, and copy the project to it.

        It must have been created (:mod:`danlu.engine.kubernetes.commands`). Raises
        :class:`~danlu.errors.DanluError` if it cannot be reached.
        """
        settings = read_settings(environment)
        stack = AsyncExitStack()
        pod = await stack.enter_async_context(open_pod(settings))
        try:
            container = KubernetesContainer(pod, environment, spec, settings, stack)
            await container.start()
            await container.copy_vscode_servers(self._vscode_servers)
        except BaseException:
            with anyio.CancelScope(shield=True):
                # An older pod has files that are nowhere else.
                if settings.is_new:
                    with suppress(DanluError):
                        await pod.delete(grace=0, wait=False)
                await stack.aclose()
            raise
        return container


class KubernetesContainer:
    """A pod whose programs belong to this process; it is deleted when the environment stops.

    If this process is killed, the pod runs until its own limit, and can be taken over.
    """

    #: It runs on a node.
    pid: int | None = None

    def __init__(
        self,
        pod: EnvironmentPod,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        settings: PodSettings,
        stack: AsyncExitStack,
    ) -> None:
        self._pod = pod
        self._environment = environment
        self._spec = spec
        self._settings = settings
        self._stack = stack
        self._programs: list[KubernetesProgram] = []
        self._lost_programs: list[KubernetesProgram] = []
        self._warnings = list(settings.warnings)
        self._project: ProjectCopy | None = None
        self._keeper: PodExec | None = None
        self._is_stopping = False
        self._exit: ContainerExit | None = None

    @property
    def programs(self) -> Sequence[EnvironmentProgram]:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return tuple(self._programs)

    @property
    def port_opener(self) -> PortOpener | None:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return self

    @property
    def warnings(self) -> Sequence[str]:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return tuple(self._warnings)

    async def start(self) -> None:
        """Take the pod over, and copy the project."""
        found = await self._pod.read()
        if found is None:
            raise OutsideError(f"pod {self._pod.name} was deleted while it started")
        self._keeper = await self._open_keeper()
        if self._spec.project:
            self._project = open_project_copy(
                self._pod, self._environment, self._spec, self._settings, found.metadata.uid
            )
            await self._send_project(self._project)

    async def copy_vscode_servers(self, root: Path) -> None:
        """Copy servers of VS Code to the pod; a failure is a warning."""
        failure = await copy_servers(self._pod, root)
        if failure:
            self._add_warning(failure)

    # -- programs ---------------------------------------------------------------------------------

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> KubernetesProgram:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        self._check_user(request.user)
        descriptors = ProgramDescriptors(stdin, stdout, stderr)
        try:
            if self._project is not None:
                await self._send_project(self._project)
            program = await start_program(
                self._pod, request, descriptors, self._forget_program, self._fetch_project
            )
        except BaseException:
            descriptors.close()
            raise
        self._programs.append(program)
        return program

    def _check_user(self, user: str) -> None:
        own = self._settings.user.uid
        same = ("", self._spec.user, str(own), *(("root",) if own == 0 else ()))
        if user.partition(":")[0] not in same:
            raise UsageError(
                f"programs in a pod cannot run as user {user}: Kubernetes has one user for all",
                hint=f"start it as that user: danlu up --recreate --user {user}",
            )

    def _forget_program(self, program: KubernetesProgram) -> None:
        self._programs.remove(program)
        if program.is_lost:
            self._lost_programs.append(program)

    async def _send_project(self, project: ProjectCopy) -> None:
        report = await run_in_thread(project.send_changes)
        for note in report.list_notes("the pod"):
            self._add_warning(note)

    async def _fetch_project(self) -> None:
        """Copy what programs made in the project; a failure is a warning, not theirs."""
        if self._project is None or self._is_stopping:
            return
        try:
            await self._fetch_files(self._project)
        except (OutsideError, TemporaryError, UsageError) as error:
            self._add_warning(f"files of the project were not copied from the pod: {error.message}")

    async def _fetch_files(self, project: ProjectCopy) -> None:
        report = await run_in_thread(project.fetch_changes)
        report.ignored.clear()  # it stays in the pod on purpose
        for note in report.list_notes("the pod"):
            self._add_warning(note)

    def _add_warning(self, text: str) -> None:
        # The supervisor publishes them with its next change of state.
        logger.warning("%s", text)
        if text not in self._warnings:
            self._warnings.append(text)

    # -- ports ------------------------------------------------------------------------------------

    async def open_port(self, port: int) -> PodConnection:
        """Connect to a port inside the pod; raises :class:`~danlu.errors.DanluError`."""
        return await open_pod_port(
            self._pod.client.transport, self._pod.namespace, self._pod.name, port
        )

    # -- the end ----------------------------------------------------------------------------------

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        while self._exit is None:
            if self._keeper is not None:
                await self._renew_pod(self._keeper)
                await self._keeper.close()
                self._keeper = None
            await self._check_pod()
        return self._exit

    async def _renew_pod(self, keeper: PodExec) -> None:
        """Renew the pod until the connection ends."""

        async def send_lines() -> None:
            with suppress(ConnectionLost):
                while True:
                    await keeper.send_input(b"\n")
                    await anyio.sleep(_RENEW_SECONDS)

        async with anyio.create_task_group() as group:
            group.start_soon(send_lines)
            with suppress(ConnectionLost, OutsideError):
                # Nothing is expected: reading is what notices that the connection has ended.
                async for _ in keeper.read_output():
                    pass
            group.cancel_scope.cancel()

    async def _check_pod(self) -> None:
        """Find out why the connection ended: with the pod, or with the network."""
        try:
            reason = await self._pod.explain_end()
            if reason:
                self._exit = ContainerExit(_ENDED_CODE, "Error", reason)
                return
            self._keeper = await self._open_keeper(take_over=False)
            # They still run, without streams.
            while self._lost_programs:
                await self._lost_programs.pop().kill_inside()
        except (OutsideError, TemporaryError, UsageError) as error:
            logger.warning("%s", error)
            await anyio.sleep(_RETRY_SECONDS)

    async def _open_keeper(self, *, take_over: bool = True) -> PodExec:
        words = ("/bin/sh", "-c", RENEW_SCRIPT, "danlu", "take-over" if take_over else "")
        keeper = await open_pod_exec(
            self._pod.client.transport,
            self._pod.namespace,
            self._pod.name,
            words,
            container=CONTAINER,
        )
        # What is started before it is ready would be killed.
        async with aclosing(keeper.read_output()) as output:
            async for _ in output:
                return keeper
        raise OutsideError(
            f"programs cannot run in pod {self._pod.name}: /bin/sh ended with exit code"
            f" {keeper.exit_code}"
        )

    async def stop(self, *, grace: float) -> None:
        """Copy the project's files back, and delete the pod."""
        with anyio.CancelScope(shield=True):
            self._is_stopping = True
            try:
                if self._project is not None and self._exit is None:
                    await self._fetch_files(self._project)
                if self._keeper is not None:
                    await self._keeper.close()
                await self._pod.delete(grace=max(1, round(grace)))
            finally:
                await self._stack.aclose()
            self._exit = self._exit or ContainerExit(0, "Completed")


def open_project_copy(
    pod: EnvironmentPod,
    environment: EnvironmentDirectory,
    spec: EnvironmentSpec,
    settings: PodSettings,
    uid: str,
) -> ProjectCopy:
    """Return the project's copy in a running pod with that uid."""
    directory = PROJECT_DIRECTORY
    return ProjectCopy(
        PodShell(pod),
        Path(spec.project),
        environment.directory / _RECORDS_FILE,
        CopyPlace(directory, f"{directory}/{STAGE_NAME}", volume=settings.claim or uid),
    )
