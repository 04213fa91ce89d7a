"""What the supervisor gives replicas beside their pods: containers, volumes, reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from danlu.jobs.local import volumes
from danlu.jobs.local.progressserver import MOUNT, ProgressServer
from danlu.jobs.local.state import Place, Settings
from danlu.jobs.local.topology import FILES
from danlu.jobs.local.types import Engine, Volume
from danlu.jobs.types import Progress, Submission
from danlu.sandbox import userns
from danlu.training.frameworks.pods import main_container
from danlu.training.registry import framework_of
from danlu.training.types import Job, ReplicaId
from danlu.util.paths import Paths

__all__ = ["LocalHelpers"]


class LocalHelpers:
    """Those of one job on this machine (:class:`danlu.jobs.local.launch.Helpers`)."""

    def __init__(self, place: Place, submission: Submission, settings: Settings) -> None:
        self._place = place
        self._submission = submission
        self._settings = settings
        self._progress: ProgressServer | None = None
        self._volumes = place.directory / "volumes"

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
        server = ProgressServer(
            on_progress,
            job=job,
            leader=framework_of(job.kind).leader(job),
            directory=self._place.directory / "progress",
            certificates=_paths(self._settings).certificates,
        )
        async with server:
            self._progress = server
            try:
                yield
            finally:
                for place in self._volumes.glob("*"):
                    volumes.remove(place)

    def warnings(self) -> tuple[str, ...]:
        """What could not be given."""
        return () if self._progress is None else tuple(self._progress.warnings())

    def environment(self, replica: ReplicaId) -> Mapping[str, str]:
        """Variables of its programs."""
        if self._progress is None:
            return {}
        files = MOUNT if self._contained(replica) else None
        return self._progress.environment(replica, files=files)

    def volumes(self, replica: ReplicaId) -> Mapping[str, Path]:
        """What stands for the volumes of its pod; made anew for each attempt."""
        template = self._submission.job.replicas[replica.type].template
        wanted = volumes.sources(template.get("spec") or {}, self._submission.objects)
        place = self._volumes / str(replica)
        volumes.remove(place)
        return volumes.make(wanted, place, mounting=userns.entered()) if wanted else {}

    def mounts(self, replica: ReplicaId) -> tuple[Volume, ...]:
        """What its containers find beside that: the framework's files, and those of progress."""
        found = [Volume(self._place.files, FILES, readonly=True)]
        if self._progress is not None and self._progress.port is not None:
            found.append(Volume(self._progress.files(replica), MOUNT, readonly=True))
        return tuple(found)

    def containers(self) -> Engine:
        """The engine of containers."""
        from danlu.jobs.local.container import ContainerEngine
        from danlu.util.config import load_configuration

        port = None if self._progress is None else self._progress.port
        ports = () if port is None else (port,)
        paths = _paths(self._settings)
        return ContainerEngine(paths, load_configuration(paths.config_file), ports=ports)

    def _contained(self, replica: ReplicaId) -> bool:
        """Whether its pod's main container is one, and no process."""
        job = self._submission.job
        name = framework_of(job.kind).container
        main = main_container(job.replicas[replica.type].template, name)
        return main.get("image") in self._submission.images


def _paths(settings: Settings) -> Paths:
    return Paths(config=Path(settings.config), data=Path(settings.data), state=Path(settings.state))
