"""What an engine is: where the containers of environments run, and what it can do."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
        has_host_gpus: Whether the GPUs are this machine's. If not, the engine chooses them.
        keeps_files: Whether what programs change in the image's files survives a stop, and can be
            committed.
        runs_jobs: Whether training jobs can run where it is selected.
        runs_programs: Whether a program runs in an image without an environment.
        is_cluster: Whether it is a cluster of Kubernetes, of which there are several: contexts name
            one, and jobs run there as well.
    """

    networks: tuple[NetworkName, ...] = ("host",)
    mounts_files: bool = True
    has_host_gpus: bool = True
    keeps_files: bool = True
    runs_jobs: bool = False
    runs_programs: bool = False
    is_cluster: bool = False


class ContainerStarter(Protocol):
    """Starts the container of an environment, in the process of its supervisor."""

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> EnvironmentContainer:
        """Start the container; it is cleaned up when ``resources`` closes.

        Raises :class:`~danlu.errors.DanluError` if it could not be started.
        """


class Engine:
    """Where containers run. Modules of engines are small: what they need is loaded when used."""

    name: str
    features = EngineFeatures()

    def load_commands(self) -> EngineCommands:
        """Return what commands do for it."""
        from danlu.engine.engine_commands import EngineCommands

        return EngineCommands()

    def open_starter(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> ContainerStarter:
        """Return what starts containers in this process, before its event loop runs.

        ``restarted`` is the environment's container if that is being started already.
        """
        raise NotImplementedError
