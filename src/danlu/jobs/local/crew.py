"""The replicas of a job: makes attempts at them, ends them, and says what is seen of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from danlu.jobs.local import gpus, handed
from danlu.jobs.local.attempt import Attempt
from danlu.jobs.local.launch import Helpers, write_files
from danlu.jobs.local.ledger import Ledger
from danlu.jobs.local.logs import LogWriter, log_file
from danlu.jobs.local.pod import Pod, Surroundings, gpus_asked, pod_of
from danlu.jobs.local.process import ProcessEngine
from danlu.jobs.local.state import Place, Settings
from danlu.jobs.local.topology import (
    LocalTopology,
    is_contained,
    members,
    rendered,
    topology_of,
)
from danlu.jobs.local.types import Container, Engine
from danlu.jobs.types import Command, Submission
from danlu.training.framework import Framework
from danlu.training.types import Job, Observed, Phase, ReplicaId

__all__ = ["Crew"]

_LOOK_AGAIN = 0.5


class Crew:
    """All attempts of one job.

    ``changed`` is called whenever something of one did. ``helpers`` gives what programs find
    around them beside their pod.
    """

    def __init__(
        self,
        place: Place,
        submission: Submission,
        settings: Settings,
        framework: Framework,
        *,
        changed: Callable[[], None],
        helpers: Helpers,
    ) -> None:
        self.latest: dict[ReplicaId, Attempt] = {}
        self._place = place
        self._submission = submission
        self._settings = settings
        self._framework = framework
        self._changed = changed
        self._helpers = helpers
        self._ledger = Ledger(Path(settings.ledger), place.directory)
        self._processes = ProcessEngine(orphanage=os.getppid())
        self._containers: Engine | None = None
        self._attempts: dict[str, Attempt] = {}
        self._logs: dict[ReplicaId, LogWriter] = {}
        self._gpus: dict[str, tuple[int, ...]] = {}
        self._present: tuple[int, ...] | None = None
        self._count = 0
        self._running: tuple[ReplicaId, ...] | None = None
        self.topology = LocalTopology({})

    # -- the job as it is now ---------------------------------------------------------------------

    def assemble(self, job: Job) -> None:
        """Have a place for each replica that ``job`` is to have now."""
        self._job = job
        self.topology = topology_of(
            self._submission, job, framework=self._framework, ledger=self._ledger, place=self._place
        )
        self._running = None
        self.refresh_files()

    def refresh_files(self) -> None:
        """Write the framework's files where other replicas run than when they were written."""
        running = tuple(one.id for one in self._attempts.values() if one.phase is Phase.RUNNING)
        if running != self._running:
            self._running = running
            files = self._framework.files(self._job, self.topology, running)
            write_files(self._place, files, python=self._submission.python or sys.executable)

    def warnings(self) -> tuple[str, ...]:
        """What could not be kept on this machine."""
        engines = [self._processes, *([self._containers] if self._containers else [])]
        return tuple(text for one in engines for text in one.warnings())

    def observed(self) -> Observed:
        """All attempts there are."""
        return Observed(tuple(one.observed() for one in self._attempts.values()))

    def attempts(self) -> Sequence[Attempt]:
        """All attempts there are."""
        return tuple(self._attempts.values())

    # -- making them ------------------------------------------------------------------------------

    def create(self, replica: ReplicaId, number: int, group: TaskGroup) -> None:
        """Begin an attempt at ``replica``."""
        self._count += 1
        attempt = Attempt(
            replica,
            number,
            uid=f"{replica}.{self._count}",
            grace=self._settings.grace,
            changed=self._changed,
        )
        self._attempts[attempt.uid] = self.latest[replica] = attempt

        group.start_soon(self._run, attempt)

    async def _run(self, attempt: Attempt) -> None:
        pod = partial(self._pod, attempt)
        await attempt.run(pod, engine=self._engine, log=self._log(attempt.id))

    async def _pod(self, attempt: Attempt) -> Pod:
        attempt.gpus = await self._gpus_of(attempt)
        pod = rendered(self._job, self._framework, attempt.id, self.topology)
        found = pod_of(pod, self._submission, self._surroundings(attempt))
        self._place.write_command(attempt.id, _command(found.main, self._submission))
        return found

    def _surroundings(self, attempt: Attempt) -> Surroundings:
        member = self.topology.members[attempt.id]
        given = self._place, self._submission, attempt.id
        contained = is_contained(self._submission, self._framework, attempt.id)
        return Surroundings(
            replica=attempt.id,
            attempt=attempt.number,
            mark=f"{self._job.uid}.{attempt.uid}",
            main=self._framework.container,
            host=member.name,
            address=member.address,
            hosts=self.topology.hosts(),
            gpus=attempt.gpus,
            environment={
                "PYTHONUNBUFFERED": "1",
                **self._helpers.environment(attempt.id),
                **self._submission.environment,
            },
            main_environment=handed.variables(*given, contained=contained),
            volumes=self._helpers.volumes(attempt.id),
            mounts=(*self._helpers.mounts(attempt.id), *handed.mounts(*given)),
        )

    def _engine(self, container: Container) -> Engine:
        if not container.image:
            return self._processes
        if self._containers is None:
            self._containers = self._helpers.containers()
        return self._containers

    def _log(self, replica: ReplicaId) -> LogWriter:
        if replica not in self._logs:
            path = log_file(self._place.logs, replica)
            self._logs[replica] = LogWriter(
                path, limit=self._settings.log_bytes, keep=self._settings.log_files
            )
        return self._logs[replica]

    # -- GPUs -------------------------------------------------------------------------------------

    async def _gpus_of(self, attempt: Attempt) -> tuple[int, ...]:
        """The GPUs of an attempt, once the whole job can have its own."""
        number = self._asked(attempt.id)
        if not number:
            return ()
        total = sum(self._asked(one) for one in members(self._job))
        if self._present is None:
            self._present = await to_thread.run_sync(gpus.present)
        while True:
            granted = self._ledger.gpus(total, self._present)
            if granted is not None:
                attempt.waits = ""
                return self._dealt(attempt.uid, number, granted)
            words = f"{total} GPUs; other jobs have them"
            if attempt.waits != words:
                attempt.waits = words
                self._changed()
            await anyio.sleep(_LOOK_AGAIN)

    def _asked(self, replica: ReplicaId) -> int:
        return gpus_asked(self._job.replicas[replica.type].template)

    def _dealt(self, uid: str, number: int, granted: Sequence[int]) -> tuple[int, ...]:
        alive = {one.uid for one in self._attempts.values()}
        taken = {gpu for owner, some in self._gpus.items() if owner in alive for gpu in some}
        self._gpus[uid] = tuple(gpu for gpu in granted if gpu not in taken)[:number]
        return self._gpus[uid]

    # -- ending them ------------------------------------------------------------------------------

    async def end(self, uid: str, *, grace: float | None = None) -> None:
        """End an attempt and forget it; ``latest`` has it until there is another."""
        attempt = self._attempts[uid]
        attempt.deleting = True
        await attempt.end(grace=self._settings.grace if grace is None else grace)
        self._attempts.pop(uid, None)
        if not self._attempts and any(self._gpus.values()):
            self._ledger.give_gpus_back()
        self._changed()

    async def end_all(self, *, grace: float | None = None) -> None:
        """End all attempts at one time; they are seen as they ended until :meth:`close`."""
        async with anyio.create_task_group() as group:
            for attempt in self._attempts.values():
                group.start_soon(self._end_one, attempt, grace)

    async def _end_one(self, attempt: Attempt, grace: float | None) -> None:
        await attempt.end(grace=self._settings.grace if grace is None else grace)

    def forget(self) -> None:
        """Forget all attempts, which ended."""
        self._attempts.clear()

    async def close(self) -> None:
        """Let go of everything."""
        for engine in (self._processes, self._containers):
            if engine is not None:
                await engine.close()
        for log in self._logs.values():
            log.close()
        self._ledger.leave()


def _command(container: Container, submission: Submission) -> Command:
    names = {image.digest: image.name or name for name, image in submission.images.items()}
    return Command(
        container.args,
        container.environment,
        container.directory,
        names.get(container.image, container.image),
    )
