"""The engines Docker and Podman."""

from __future__ import annotations

from danlu.engine.docker.stopped_container import AttachedContainer
from danlu.engine.engine import ContainerStarter, Engine
from danlu.util.config import Configuration
from danlu.util.paths import Paths


class DockerEngine(Engine):
    """Containers of Docker or Podman."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open_starter(
        self, paths: Paths, config: Configuration, restarted: AttachedContainer | None
    ) -> ContainerStarter:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.docker.command import DockerCommand
        from danlu.engine.docker.container import DockerStarter

        return DockerStarter(DockerCommand(self.name), config, restarted)


DOCKER = DockerEngine("docker")
PODMAN = DockerEngine("podman")
