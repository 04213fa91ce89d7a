"""Prepare a container up to the command line that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sandbox.launcher.cgroup import (
    CgroupManager,
    ContainerCgroup,
    enter_script,
    open_procs_files,
)
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import SHELL, ContainerSpec, has_shell, prepare_bundle
from danlu.sandbox.runtime import OciRuntime, find_runtime
from danlu.sandbox.types import ProcessSpec

#: Starts a program from a shell that was only needed before.
EXEC_ARGS = 'exec "$@"'


@dataclass(frozen=True)
class PreparedContainer:
    """A container that can be started: its bundle, and the control group that it enters.

    With ``enters_inside`` a shell of the container enters it, else the runtime does.
    """

    runtime: OciRuntime
    bundle: Path
    process: ProcessSpec
    group: ContainerCgroup | None
    enters_inside: bool

    @property
    def log(self) -> Path:
        """The runtime's log."""
        return self.bundle / "log"

    @contextmanager
    def open_command(self) -> Iterator[tuple[list[str], Sequence[int]]]:
        """Yield the command line, and the descriptors that it gets after its three streams."""
        with open_procs_files(self.group) as procs_files:
            count = len(procs_files)
            if self.enters_inside or not count:
                command = self.runtime.command(self.bundle, descriptors=count)
            else:
                script = f"{enter_script(count)}{EXEC_ARGS}"
                command = [SHELL, "-c", script, "danlu", *self.runtime.command(self.bundle)]
            yield command, procs_files

    def start_error(self, what: str, reason: str) -> MachineError:
        """Return the exception for a container that the runtime could not start."""
        return MachineError(
            f"{self.runtime.name} could not start {what}",
            details=(reason,),
            hint="`danlu doctor` checks this machine",
        )


class ContainerLauncher:
    """Prepares containers in ``work``, a private directory on the store's file system.

    ``runtime`` and ``seccomp`` are the settings of these names. Without ``cgroups`` no container
    has a control group. Requires :func:`danlu.sandbox.userns.enter`. Raises :class:`MachineError`
    if the OCI runtime is not installed.
    """

    def __init__(
        self,
        work: Path,
        *,
        runtime: str = "",
        seccomp: str = "",
        cgroups: CgroupManager | None = None,
    ) -> None:
        self.work = work
        self._runtime = find_runtime(runtime)
        self._seccomp = seccomp
        self._cgroups = cgroups

    def prepare(self, spec: ContainerSpec, resources: ExitStack) -> PreparedContainer:
        """Prepare a container, which is removed when ``resources`` closes.

        Raises :class:`MachineError` if this machine cannot provide something, and
        :class:`~danlu.errors.UsageError` for an invalid mount.
        """
        group, enters_inside = None, False
        if spec.group and self._cgroups is not None:
            group = self._cgroups.create(spec.group, spec.limits)
            resources.callback(group.close)
            enters_inside = has_shell(LayerView(spec.root.layers))
            if enters_inside:
                script = f"{enter_script(group.fd_count)}{spec.script or EXEC_ARGS}"
                spec = msgspec.structs.replace(spec, script=script)
        bundle = prepare_bundle(spec, work=self.work, seccomp=self._seccomp)
        return PreparedContainer(
            self._runtime, resources.enter_context(bundle), spec.process, group, enters_inside
        )
