"""What an engine is: where the containers of environments run, and what it can do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.types import EnvironmentContainer
from danlu.util.config import Configuration, NetworkName
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.engine.engine_commands import EngineCommands


@dataclass(frozen=True, kw_only=True)
class EngineFeatures:
    """What an engine can do. The defaults are those of one that runs containers on this machine.

    Attributes:
        networks: Which networks it can give an environment; empty if containers have one of their
            own, whose ports are always forwarded.
        mounts_files: Whether containers see files of this machine. If not, the project is copied,
            and only volumes that the engine keeps by name can be mounted.
        gpus: Whose GPUs containers can have: this machine's, or those that the engine chooses.
        limits: Whether CPU and memory can be limited.
        keeps_files: Whether what programs change in the image's files survives a stop, and can be
            committed.
        runs_jobs: Whether training jobs can run where it is selected.
        runs_programs: Whether a program runs in an image without an environment.
        is_cluster: Whether it is a cluster of Kubernetes, of which there are several: contexts name
            one, and jobs run there as well.
        is_account: Whether it is a service for training jobs in an account that contexts name; no
            environments run there.
    """

    networks: tuple[NetworkName, ...] = ("host",)
    mounts_files: bool = True
    gpus: Literal["host", "engine", "none"] = "host"
    limits: bool = True
    keeps_files: bool = True
    runs_jobs: bool = False
    runs_programs: bool = False
    is_cluster: bool = False
    is_account: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineProgram:
    """A program without which an engine cannot be used, as `danlu doctor` looks for it.

    Attributes:
        package: Its package in Debian.
        version: The arguments with which it prints its version, if what it needs can be reached.
        start: What to do if it does not.
        address: The variable that says where that is instead.
    """

    name: str
    package: str
    version: tuple[str, ...] = ("--version",)
    start: str = ""
    address: str = ""


StartContainer = Callable[
    [EnvironmentDirectory, EnvironmentSpec, ExitStack], Awaitable[EnvironmentContainer]
]
"""Starts the container of an environment, which is cleaned up when the stack closes.

Raises :class:`~danlu.errors.DanluError` if it could not be started.
"""


class Engine:
    """Where containers run. Modules of engines are small: what they need is loaded when used."""

    name: str
    features = EngineFeatures()
    program: EngineProgram | None = None
    job_service: str = ""
    """The module with the :class:`danlu.jobs.services.JobService` that runs its jobs elsewhere."""

    def load_commands(self) -> EngineCommands:
        """Return what commands do for it."""
        from danlu.engine.engine_commands import EngineCommands

        return EngineCommands()

    def open_engine(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> StartContainer:
        """Return what starts containers in this process, a supervisor, before its event loop runs.

        ``restarted`` is the environment's container if that is being started already.
        """
        raise NotImplementedError
