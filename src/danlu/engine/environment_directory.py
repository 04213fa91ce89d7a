"""The directory of a running or stopped environment: its layout, and reading and writing it.

::

    NAME/spec.json         how it is started (:class:`EnvironmentSpec`)
         settings.json     the supervisor's settings (:class:`EngineSettings`)
         state.json        the current state (:class:`EnvironmentState`), replaced on every change
         upper/            the writable layer, in overlayfs's form
         logs/SERVICE.log  output of its services, and of ``init``
         control.sock      the supervisor's control socket
         ssh/              keys for connections
         supervisor.lock   locked while the supervisor runs; contains its process id
         supervisor.log    stdout and stderr of the supervisor itself

Later versions read what this one writes, so names of fields must not change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from danlu.engine.supervisor_directory import SupervisorDirectory
from danlu.engine.types import ResourceLimits, VolumeMount
from danlu.errors import UsageError
from danlu.util.files import write_atomic
from danlu.util.json_codec import decode, encode

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")

Phase = Literal["Starting", "Running", "Stopped", "Failed"]


class ServiceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program that the supervisor keeps running, restarted with back-off when it ends."""

    name: str
    args: tuple[str, ...]
    environment: dict[str, str] = {}


class PortForward(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of the environment, and where it is reached on the host.

    The environment shares the host's network, so only a different address or port needs a forward.
    A port that is not ``fixed`` may be replaced at the next start if another program uses it.
    """

    port: int
    host_port: int
    address: str = "127.0.0.1"
    service: str = ""
    fixed: bool = True


class EnvironmentSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an environment is started.

    Attributes:
        image: Config digest of an image in the store.
        created: When it was created.
        project: The directory mounted at ``/workspace``; empty for none.
        target: The build file and function it was built from; empty for a named image.
        environment: Variables in addition to the image's.
        user: Empty for the image's user.
        shm_size: Bytes of ``/dev/shm``; 0 for the default.
        init: Shell commands that run once per start, before the services.
    """

    name: str
    image: str
    created: datetime
    project: str = ""
    target: str = ""
    mounts: tuple[VolumeMount, ...] = ()
    environment: dict[str, str] = {}
    user: str = ""
    limits: ResourceLimits = ResourceLimits()
    shm_size: int = 0
    init: tuple[str, ...] = ()
    services: tuple[ServiceSpec, ...] = ()
    ports: tuple[PortForward, ...] = ()


class ServiceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service: ``pid`` on the host while it runs, and how it ended last."""

    name: str
    running: bool = False
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""


class EnvironmentState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an environment as its supervisor last wrote it.

    Attributes:
        started: When it was started last; None if never.
        ended: When it was stopped or failed; None while it runs.
        reason: Why it is stopped or failed, for people.
        warnings: What this machine could not enforce or provide.
        stopped_by_user: Whether it was stopped on request.
        container: The host's process id of the container's first process.
    """

    phase: Phase
    started: datetime | None = None
    ended: datetime | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    services: tuple[ServiceState, ...] = ()
    stopped_by_user: bool = False
    container: int | None = None


class EngineSettings(msgspec.Struct, frozen=True):
    """The user's directories and configuration that a supervisor needs."""

    config: str
    data: str
    state: str


@dataclass(frozen=True, slots=True)
class EnvironmentDirectory(SupervisorDirectory):
    """The directory of one environment."""

    @property
    def upper(self) -> Path:
        """The writable layer."""
        return self.directory / "upper"

    @property
    def control_socket(self) -> Path:
        """The supervisor's control socket."""
        return self.directory / "control.sock"

    def exists(self) -> bool:
        """Return whether there is such an environment."""
        return (self.directory / "spec.json").exists()

    def read_spec(self) -> EnvironmentSpec:
        """Read how the environment is started."""
        return decode((self.directory / "spec.json").read_bytes(), EnvironmentSpec)

    def write_spec(self, spec: EnvironmentSpec) -> None:
        """Replace how the environment is started; readable by its owner only."""
        write_atomic(self.directory / "spec.json", encode(spec), mode=0o600)

    def read_settings(self) -> EngineSettings:
        """Read the supervisor's settings."""
        return decode((self.directory / "settings.json").read_bytes(), EngineSettings)

    def write_settings(self, settings: EngineSettings) -> None:
        """Write the supervisor's settings."""
        (self.directory / "settings.json").write_bytes(encode(settings))

    def read_state(self) -> EnvironmentState:
        """Return the current state; a supervisor that was killed could not write its last one."""
        try:
            data = (self.directory / "state.json").read_bytes()
        except FileNotFoundError:
            return EnvironmentState("Stopped", reason="never started")
        state = decode(data, EnvironmentState)
        if state.phase in ("Starting", "Running") and not self.is_running():
            return msgspec.structs.replace(
                state,
                phase="Stopped",
                reason="its supervisor was killed, or the machine restarted",
                services=(),
                container=None,
            )
        return state

    def write_state(self, state: EnvironmentState) -> None:
        """Replace the state."""
        write_atomic(self.directory / "state.json", encode(state), sync=False)

    def log_file(self, service: str) -> Path:
        """Return the log file of a service."""
        return self.logs / f"{service}.log"

    def log_names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        try:
            names = os.listdir(self.logs)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".log") for name in names if name.endswith(".log"))


def list_environments(root: Path) -> Iterator[EnvironmentDirectory]:
    """Yield all environments below ``root``, by name."""
    with suppress(FileNotFoundError):
        for path in sorted(root.iterdir()):
            # Directories that are being created or removed start with a dot.
            environment = EnvironmentDirectory(path)
            if not path.name.startswith(".") and environment.exists():
                yield environment


def check_environment_name(name: str) -> str:
    """Return ``name``; raise :class:`UsageError` if it is invalid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid environment name {name!r}",
            hint="use at most 63 lowercase letters, digits, '.', '_' and '-'",
        )
    return name
