"""What commands do for an engine: before an environment starts, and when it is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.layer_changes import WriteChanges, copy_changes, list_layer
from danlu.graph.progress import Progress
from danlu.util.config import Configuration
from danlu.util.paths import Paths


@dataclass(frozen=True)
class EngineHost:
    """What a command gives an engine.

    Attributes:
        push_image: Pushes the image with a digest to a repository of the configured registry, by
            its last name, and returns its reference. Forks, so the process must not have other
            threads. Raises :class:`~danlu.errors.DanluError`.
    """

    paths: Paths
    config: Configuration
    progress: Progress
    push_image: Callable[[str, str], str]


class EngineCommands:
    """What an engine with nothing outside the supervisor needs: nothing.

    The files that programs change are in the environment's own writable layer.
    """

    def prepare_container(self, environment: EnvironmentDirectory, host: EngineHost) -> None:
        """Provide the image, and what the supervisor needs to start the container.

        Forks, so the process must not have other threads. Raises
        :class:`~danlu.errors.DanluError` if the engine cannot be used.
        """

    def deliver_image(self, digest: str, host: EngineHost) -> None:
        """Copy an image to the engine before an older one goes, with which it shares layers.

        Forks, so the process must not have other threads. Raises
        :class:`~danlu.errors.DanluError` if the engine cannot be used.
        """

    def remove_container(self, environment: EnvironmentDirectory, keep_image: str = "") -> None:
        """Remove the container of a stopped environment, and its image unless it is ``keep_image``.

        Raises :class:`~danlu.errors.DanluError` if the engine cannot be reached.
        """

    def rename_container(self, old: EnvironmentDirectory, new: EnvironmentDirectory) -> None:
        """Give the container of a stopped environment the name of a renamed one."""

    def list_changes(self, environment: EnvironmentDirectory) -> Iterable[str]:
        """Return the paths that differ from the image; only of an engine that keeps files.

        Raises :class:`~danlu.errors.DanluError` if the engine cannot be used.
        """
        return list_layer(environment.upper)

    def open_changes(
        self, environment: EnvironmentDirectory
    ) -> AbstractContextManager[WriteChanges]:
        """Open the changes, which can be written once, also by another process.

        Only of an engine that keeps files. Raises :class:`~danlu.errors.DanluError` if it cannot be
        used.
        """
        return nullcontext(partial(copy_changes, environment.upper))
