"""The engines Docker and Podman."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.engine import Engine, EngineProgram, StartContainer
from danlu.util.config import Configuration
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.engine.engine_commands import EngineCommands


class DockerEngine(Engine):
    """Containers of Docker or Podman."""

    program: EngineProgram

    def __init__(self, program: EngineProgram) -> None:
        self.name = program.name
        self.program = program

    def load_commands(self) -> EngineCommands:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.docker.commands import DockerCommands

        return DockerCommands(self.name)

    def open_engine(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> StartContainer:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.docker.command import DockerCommand
        from danlu.engine.docker.container import DockerStarter

        return DockerStarter(DockerCommand(self.name), config, restarted).start_container


DOCKER = DockerEngine(
    EngineProgram(
        name="docker",
        package="docker.io",
        version=("version", "--format", "{{.Server.Version}}"),
        start="start it: `sudo systemctl start docker`",
        address="DOCKER_HOST",
    )
)
PODMAN = DockerEngine(
    EngineProgram(
        name="podman",
        package="podman",
        version=("version", "--format", "{{.Version}}"),
        address="CONTAINER_HOST",
    )
)
