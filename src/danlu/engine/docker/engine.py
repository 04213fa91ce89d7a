"""The engines Docker and Podman."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.engine import ContainerStarter, Engine
from danlu.util.config import Configuration
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.engine.engine_commands import EngineCommands


class DockerEngine(Engine):
    """Containers of Docker or Podman."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load_commands(self) -> EngineCommands:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.docker.commands import DockerCommands

        return DockerCommands(self.name)

    def open_starter(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> ContainerStarter:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.docker.command import DockerCommand
        from danlu.engine.docker.container import DockerStarter

        return DockerStarter(DockerCommand(self.name), config, restarted)


DOCKER = DockerEngine("docker")
PODMAN = DockerEngine("podman")
