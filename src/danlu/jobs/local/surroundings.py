"""What the supervisor gives replicas beside their pods: containers, volumes, reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from danlu.jobs.local.state import Place, Settings
from danlu.jobs.local.types import Engine, Volume
from danlu.jobs.types import Progress, Submission
from danlu.training.types import Job, ReplicaId
from danlu.util.paths import Paths

__all__ = ["LocalHelpers"]


class LocalHelpers:
    """Those of one job on this machine (:class:`danlu.jobs.local.launch.Helpers`)."""

    def __init__(self, place: Place, submission: Submission, settings: Settings) -> None:
        self._place = place
        self._submission = submission
        self._settings = settings

    @staticmethod
    def enter(settings: Settings) -> None:
        """Make this process one that can run containers."""
        from danlu.jobs.local.container import enter

        enter(_paths(settings))

    @asynccontextmanager
    async def serving(
        self, job: Job, on_progress: Callable[[Progress], None]
    ) -> AsyncIterator[None]:
        """Serve what replicas report to, within the block."""
        yield

    def warnings(self) -> tuple[str, ...]:
        """What could not be given."""
        return ()

    def environment(self, replica: ReplicaId) -> Mapping[str, str]:
        """Variables of its programs."""
        return {}

    def volumes(self, replica: ReplicaId) -> Mapping[str, Path]:
        """What stands for the volumes of its pod."""
        return {}

    def mounts(self, replica: ReplicaId) -> tuple[Volume, ...]:
        """What its containers find beside that."""
        return ()

    def containers(self) -> Engine:
        """The engine of containers."""
        from danlu.jobs.local.container import ContainerEngine
        from danlu.util.config import Configuration

        return ContainerEngine(_paths(self._settings), Configuration())


def _paths(settings: Settings) -> Paths:
    return Paths(
        config=Path(settings.config), data=Path(settings.data), state=Path(settings.state)
    )
