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
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from danlu.engine.control_client import CONTROL_SOCKET, STATE_FILE
from danlu.engine.supervisor_directory import SupervisorDirectory
from danlu.engine.supervisor_spawn import SETTINGS_FILE, environment_lock_file
from danlu.errors import StoreError, UsageError
from danlu.sandbox.procfs import boot_time
from danlu.sandbox.types import Mount, ResourceLimits
from danlu.util.config import NetworkName
from danlu.util.danlu_program import DEFAULT_ENGINE
from danlu.util.files import write_atomic
from danlu.util.json_codec import decode, encode
from danlu.util.locks import file_lock, try_file_lock

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")

#: The log of init commands, next to those of services.
INIT_LOG = "init"

#: What the first process of a container starts only to wait.
#: What the first process runs in danlu's own engine, as the child of tini if the image has it: it
#: reaps orphans (dash waits for any child) until it is terminated.
WAIT_SCRIPT = 'trap "exit 0" TERM; while :; do sleep 86400 & wait $!; done'
WAITING_COMMANDS = ("sleep 86400", "cat -- -", "sleep 05")
#: Part of the command line of shells that only wait.
WAITING_MARK = "/run/danlu/renewed"
#: Part of the command line of :mod:`danlu.engine.ssh.inside.unix_socket`.
RELAY_MARK = "Connect stdin and stdout to a Unix socket"

Phase = Literal["Starting", "Running", "Stopped", "Failed"]


class ServiceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program that the supervisor keeps running, restarted with back-off when it ends."""

    name: str
    args: tuple[str, ...]
    environment: dict[str, str] = {}


class PortForward(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of the environment, and where it is reached on the host.

    In an environment that shares the host's network only a different port needs a forward.
    A port that is not ``fixed`` may be replaced at the next start if another program uses it.
    """

    port: int
    host_port: int
    address: str = "127.0.0.1"
    service: str = ""
    fixed: bool = True


class NamedVolume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A volume that the engine keeps under a name, mounted at ``target``."""

    name: str
    target: str
    readonly: bool = False


class EnvironmentSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an environment is started.

    Attributes:
        image: Config digest of an image in the store.
        created: When it was created.
        project: The directory mounted at ``/workspace``; empty for none.
        target: The build file and function it was built from; empty for a named image.
        volumes: Only in engines that keep volumes by name.
        environment: Variables in addition to the image's.
        user: Empty for the image's user.
        gpus: As for ``--gpus``; empty for none.
        shares_gpus: Whether it may use GPUs that others have, if too few are free.
        shm_size: Bytes of ``/dev/shm``; 0 for the default.
        init: Shell commands that run once per start, before the services.
        engine: What runs the container (:mod:`danlu.engine.registry`).
        context: The context whose cluster it is in; empty in other engines, and if it is unknown.
        network: Pods have that of the cluster.
        ssh_port: Where SSH clients may connect without a ``ProxyCommand``; None for nowhere.
        authorized_keys: Public keys that may log in there, besides the environment's own.
    """

    name: str
    image: str
    created: datetime
    project: str = ""
    target: str = ""
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = {}
    user: str = ""
    limits: ResourceLimits = ResourceLimits()
    gpus: str = ""
    shares_gpus: bool = False
    shm_size: int = 0
    init: tuple[str, ...] = ()
    services: tuple[ServiceSpec, ...] = ()
    ports: tuple[PortForward, ...] = ()
    engine: str = DEFAULT_ENGINE
    context: str = ""
    volumes: tuple[NamedVolume, ...] = ()
    network: NetworkName = "host"
    ssh_port: PortForward | None = None
    authorized_keys: tuple[str, ...] = ()

    @property
    def listed_ports(self) -> tuple[PortForward, ...]:
        """All ports at which something of the environment is reached."""
        return (*self.ports, *([self.ssh_port] if self.ssh_port else []))


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
        ended: When it was stopped or failed; None while it runs. For an environment whose
            supervisor was killed, when that was last seen alive.
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
        return self.directory / CONTROL_SOCKET

    @property
    def spec_file(self) -> Path:
        """How the environment is started."""
        return self.directory / "spec.json"

    @property
    def state_file(self) -> Path:
        """The current state; its time is when the supervisor was last seen alive."""
        return self.directory / STATE_FILE

    def exists(self) -> bool:
        """Return whether there is such an environment.

        A directory without a spec is one, a damaged one, if it has files that users may miss.
        """
        if self.spec_file.exists():
            return True
        try:
            return bool(os.listdir(self.upper))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def was_started(self) -> bool:
        """Return whether a supervisor has ever begun to start it."""
        return self.state_file.exists()

    def read_spec(self) -> EnvironmentSpec:
        """Read how the environment is started.

        Raises :class:`StoreError` if the file is damaged, :class:`FileNotFoundError` if there is no
        environment.
        """
        try:
            return decode(self._read_spec_file(), EnvironmentSpec)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(
                f"environment {self.name} is damaged: {self.spec_file}: {error}",
                hint=self._damage_hint,
            ) from error

    def _read_spec_file(self) -> bytes:
        try:
            return self.spec_file.read_bytes()
        except FileNotFoundError as error:
            if not self.exists():
                raise
            raise StoreError(
                f"environment {self.name} is damaged: {self.spec_file} is missing",
                hint=self._damage_hint,
            ) from error

    @property
    def _damage_hint(self) -> str:
        return f"its files are in {self.upper}; `danlu down {self.name}` removes it"

    def write_spec(self, spec: EnvironmentSpec) -> None:
        """Replace how the environment is started; readable by its owner only."""
        write_atomic(self.spec_file, encode(spec), mode=0o600)

    def read_settings(self) -> EngineSettings:
        """Read the supervisor's settings."""
        return decode((self.directory / SETTINGS_FILE).read_bytes(), EngineSettings)

    def read_state(self) -> EnvironmentState:
        """Return the current state; a supervisor that was killed could not write its last one."""
        # Before the state is read: a supervisor writes its last one before it releases the lock.
        alive = self.is_running()
        try:
            data = self.state_file.read_bytes()
        except FileNotFoundError:
            return EnvironmentState("Stopped", reason="never started")
        try:
            state = decode(data, EnvironmentState)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # It is not synced, so a file system may lose its content when the machine crashes.
            state = EnvironmentState("Starting")
        # And after it, as one may have started meanwhile.
        if state.phase in ("Starting", "Running") and not alive and not self.is_running():
            ended = datetime.fromtimestamp(self.state_file.stat().st_mtime, UTC)
            return msgspec.structs.replace(
                state,
                phase="Stopped",
                ended=ended,
                reason="machine restarted" if ended < boot_time() else "supervisor killed",
                services=(),
                container=None,
            )
        return state

    def renew_state(self) -> None:
        """Record that the supervisor is alive: the time is the end of one that is killed."""
        with suppress(OSError):
            os.utime(self.state_file)

    def write_state(self, state: EnvironmentState) -> None:
        """Replace the state."""
        write_atomic(self.state_file, encode(state), sync=False)

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


def lock_environment(root: Path, name: str) -> AbstractContextManager[None]:
    """Hold the lock for creating, starting, renaming or removing an environment below ``root``."""
    return file_lock(environment_lock_file(root, name))


def try_environment_lock(root: Path, name: str) -> AbstractContextManager[bool]:
    """Hold that lock if it is free; the context's value says whether it was."""
    return try_file_lock(environment_lock_file(root, name))


def check_environment_name(name: str) -> str:
    """Return ``name``; raise :class:`UsageError` if it is invalid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid environment name {name!r}",
            hint="use at most 63 lowercase letters, digits, '.', '_' and '-'",
        )
    return name
