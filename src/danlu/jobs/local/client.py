"""Jobs on this machine as commands see them: starts supervisors, reads what they write."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread

from danlu.errors import UsageError
from danlu.jobs.local import handed
from danlu.jobs.local.ledger import ledger_file
from danlu.jobs.local.logreaders import LogReaders
from danlu.jobs.local.start import check_gpus, check_volumes, error_of, first_view, started
from danlu.jobs.local.state import (
    EventRecord,
    Place,
    Settings,
    held,
)
from danlu.jobs.local.views import lost
from danlu.jobs.types import Command, JobView, LogLine, Result, Submission
from danlu.training.types import ReplicaId
from danlu.util.files import private_directory, remove_tree
from danlu.util.paths import Paths

__all__ = ["LocalJobs"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LOOK = 0.05
_READY = 30.0
_PATIENCE = 3.0
_SHORTEST, _LONGEST = 0.01, 0.1
"""Seconds between two looks at logs: at once again while there is more, ever later else."""


class LocalJobs:
    """The jobs of one danlu home (:class:`danlu.jobs.types.Jobs`).

    ``settings`` are those of new supervisors; their directories are filled in.
    """

    def __init__(self, paths: Paths, settings: Settings | None = None) -> None:
        self._root = paths.jobs
        own = settings or Settings("", "", "")
        self._settings = msgspec.structs.replace(
            own, data=str(paths.data), state=str(paths.state), config=str(paths.config)
        )

    # -- starting ---------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Start a job; see :class:`danlu.jobs.types.Jobs`."""
        job = submission.job
        if not _NAME.fullmatch(job.name):
            raise UsageError(f"{job.name!r} is no name for a job", hint="small letters and digits")
        check_gpus(submission)
        check_volumes(submission)
        job = msgspec.structs.replace(job, uid=job.uid or str(uuid.uuid4()))
        submission = msgspec.structs.replace(submission, job=job)
        # What began is named, also to who would not wait any more: it is theirs to end.
        with anyio.CancelScope(shield=True):
            place, lock = await to_thread.run_sync(self._placed, submission)
            try:
                verdict = await started(place, lock, tied=submission.tied)
            finally:
                os.close(lock)
        if verdict.error:
            remove_tree(place.directory)
            raise error_of(verdict)
        return job.name

    def _placed(self, submission: Submission) -> tuple[Place, int]:
        """The directory of a new job and its lock, held: it is whole from its first moment."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = submission.job.name
        made = Place(private_directory(self._root, f".{name}"))
        try:
            self._fill(made, submission)
        except BaseException:
            remove_tree(made.directory)
            raise
        lock = os.open(made.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.rename(made.directory, self._root / name)
        except OSError as error:
            os.close(lock)
            remove_tree(made.directory)
            if not (self._root / name).exists():
                raise
            hint = f"`danlu jobs rm {name}` forgets it when it is over; or choose another --name"
            raise UsageError(f"there is a job {name} already", hint=hint) from error
        return Place(self._root / name), lock

    def _fill(self, place: Place, submission: Submission) -> None:
        place.write_submission(submission)
        # Named here: in a user namespace the supervisor does not know whose it is.
        ledger = self._settings.ledger or str(ledger_file())
        place.write_settings(msgspec.structs.replace(self._settings, ledger=ledger))
        place.logs.mkdir()
        place.write_view(first_view(submission))
        if submission.files is not None:
            handed.copy_files(submission.files, place)

    # -- looking ----------------------------------------------------------------------------------

    async def names(self) -> Sequence[str]:
        """All jobs, the newest first."""
        return self._names()

    def _names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        found = []
        for one in self._root.iterdir():
            if not one.name.startswith("."):
                with suppress(FileNotFoundError):
                    found.append(((one / "submission.json").stat().st_mtime_ns, one.name))
        return [name for _, name in sorted(found, reverse=True)]

    def _place(self, name: str) -> Place:
        place = Place(self._root / name)
        if _NAME.fullmatch(name) and place.status.exists():
            return place
        raise self._unknown(name)

    def _unknown(self, name: str) -> UsageError:
        known = self._names()
        there = f"there are {', '.join(known)}" if known else "there are no jobs here"
        return UsageError(f"there is no job {name}", hint=there)

    async def view(self, name: str) -> JobView:
        """A job as it stands now."""
        return self._view(self._place(name))

    def _view(self, place: Place) -> JobView:
        # In this order: a supervisor writes how the job ended, then lets go of the lock.
        alive = held(place.lock)
        try:
            view = place.read_view()
        except FileNotFoundError as error:
            raise self._unknown(place.name) from error
        return view if alive or view.finished else lost(view, place.last_complaint())

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        """The job now and after every change, until it is finished."""
        place, before = self._place(name), None
        while True:
            view = self._view(place)
            if view != before:
                yield view
            if view.finished:
                return
            before = view
            await _changed(place)

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Lines of the replicas' logs, as they came over all of them."""
        place = self._place(name)
        readers = LogReaders(place.logs, tail=tail, newest=newest)
        pause = _SHORTEST
        try:
            while True:
                # Looked at before reading: what is there then is all there will be.
                last = not follow or self._finished(place)
                lines = readers.read(replicas or self._logged(place))
                for line in lines:
                    yield line
                if readers.more:
                    await anyio.lowlevel.checkpoint()
                    continue
                if last:
                    return
                pause = _SHORTEST if lines else min(2 * pause, _LONGEST)
                await anyio.sleep(pause)
        finally:
            readers.close()

    def _finished(self, place: Place) -> bool:
        try:
            return self._view(place).finished
        except UsageError:
            return True  # removed meanwhile

    def _logged(self, place: Place) -> list[ReplicaId]:
        """The replicas that printed something, also those that the job has no more."""
        types = {one.id.type.lower(): one.id.type for one in place.read_view().replicas}
        found = []
        for file in place.logs.glob("*.log"):
            type, _, index = file.stem.rpartition("-")
            if type in types and index.isdigit():
                found.append(ReplicaId(types[type], int(index)))
        return sorted(found)

    async def events(self, name: str) -> tuple[EventRecord, ...]:
        """What was told of a job, in order."""
        return self._place(name).read_events()

    async def command(self, name: str, replica: ReplicaId) -> Command:
        """What a replica ran last."""
        try:
            return self._place(name).read_command(replica)
        except FileNotFoundError as error:
            raise UsageError(f"{replica} of {name} has not run yet") from error

    async def result(self, name: str) -> Result:
        """Wait for the end and give it."""
        place = self._place(name)
        async for view in self.watch(name):
            last = view
        values = handed.values(place)
        value = values.get(str(handed.leader(place.read_submission())))
        return Result(last, value, values, handed.raised(place))

    # -- ordering ---------------------------------------------------------------------------------

    async def stop(self, name: str, *, grace: float = 5.0) -> None:
        """End a job; returns when nothing of it runs."""
        from danlu.jobs.local.control import Order

        place = self._place(name)
        if self._view(place).finished:
            return
        with anyio.move_on_after(grace + _PATIENCE), suppress(UsageError):
            await self._order(place, Order("stop", grace=grace))
            async for _ in self.watch(name):
                pass
        if not self._finished(place):
            # Something is wrong with the supervisor; the keeper then ends all that it left.
            place.kill_supervisor()
            with anyio.move_on_after(_READY):
                while held(place.lock):
                    await anyio.sleep(_LOOK)

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job or resume it."""
        from danlu.jobs.local.control import Order

        await self._order(self._active(name), Order("suspend", suspended=suspended))

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Ask for other numbers of replicas."""
        from danlu.jobs.local.control import Order

        await self._order(self._active(name), Order("scale", replicas=dict(replicas)))

    async def remove(self, name: str) -> None:
        """Forget a finished job and its logs."""
        from danlu.jobs.local.control import Order

        place = self._place(name)
        if not self._view(place).finished:
            hint = f"`danlu jobs stop {name}` ends it"
            raise UsageError(f"the job {name} is not over", hint=hint)
        if held(place.lock):
            with suppress(UsageError):
                await self._order(place, Order("leave"))
        with anyio.move_on_after(_READY):
            while held(place.lock):
                await anyio.sleep(_LOOK)
        remove_tree(place.directory)

    def _active(self, name: str) -> Place:
        place = self._place(name)
        if self._view(place).finished:
            raise UsageError(f"the job {name} is over")
        return place

    async def _order(self, place: Place, order: object) -> None:
        from danlu.jobs.local.control import Order, give

        assert isinstance(order, Order)
        try:
            answer = await to_thread.run_sync(give, place, order, abandon_on_cancel=True)
        except OSError as error:
            raise UsageError(f"the job {place.name} is over") from error
        if answer.error:
            raise UsageError(answer.error, hint=answer.hint)


async def _changed(place: Place) -> None:
    """Wait until the status was written again, or the lock is free; a while at most."""
    before = _mark(place)
    for _ in range(20):
        await anyio.sleep(_LOOK)
        if _mark(place) != before:
            return


def _mark(place: Place) -> tuple[int, int]:
    try:
        there = os.stat(place.status)
    except FileNotFoundError:
        return 0, 0
    return there.st_ino, there.st_mtime_ns
