"""What engines outside this process need before an environment starts, and when it is removed."""

from __future__ import annotations

from typing import Protocol

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.registry import DEFAULT_ENGINE, find_engine
from danlu.engine.settings import Settings
from danlu.graph.progress import Progress


class EngineCommands(Protocol):
    """What the commands do for an engine outside this process."""

    def prepare_container(
        self, environment: EnvironmentDirectory, settings: Settings, progress: Progress
    ) -> None:
        """Provide the image, and what the supervisor needs to start the container.

        Forks, so the process must not have other threads. Raises
        :class:`~danlu.errors.DanluError` if the engine cannot be used.
        """

    def deliver_image(
        self, digest: str, engine: str, settings: Settings, progress: Progress
    ) -> None:
        """Copy an image to the engine before an older one goes, with which it shares layers.

        Forks, so the process must not have other threads. Raises
        :class:`~danlu.errors.DanluError` if the engine cannot be used.
        """

    def remove_container(self, environment: EnvironmentDirectory, keep_image: str = "") -> None:
        """Remove the container of a stopped environment, and its image unless it is ``keep_image``.

        Raises :class:`~danlu.errors.DanluError` if the engine cannot be reached.
        """

    def rename_container(
        self, old: EnvironmentDirectory, new: EnvironmentDirectory, engine: str
    ) -> None:
        """Give the container of a stopped environment the name of a renamed one."""


def load_engine_commands(engine: str) -> EngineCommands | None:
    """Return the commands of an engine; None for the embedded one, which needs none.

    Each engine is loaded only when it is used: every ``danlu exec`` loads this module.
    """
    if engine == DEFAULT_ENGINE:
        return None
    if find_engine(engine).features.is_cluster:
        from danlu.environments import kubernetes

        return kubernetes
    from danlu.environments import docker

    return docker
