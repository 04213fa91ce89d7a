"""What to do of each replica of a job that goes on, and when to look at it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from danlu.training.finishing import removed
from danlu.training.standing import Scene, Standing, State
from danlu.training.types import CreateReplica, DeleteReplica, Job

__all__ = ["creations", "deadline", "removals", "soonest", "waits"]

UNMADE = (State.ABSENT, State.LOST)


def removals(scene: Scene, standings: Sequence[Standing]) -> Iterator[DeleteReplica]:
    """Remove what ended and is made again, what is there twice, and what the job has no more."""
    for one in standings:
        if one.state is State.ENDED and one.attempt is not None:
            yield from removed((one.attempt,), "it is made again")
        for attempt in one.surplus:
            again = attempt.uid == one.record.last
            why = "it is made again" if again else "another attempt stands for it"
            yield from removed((attempt,), why)
    yield from removed(scene.beyond, "the job has fewer replicas now")


def creations(standings: Iterable[Standing], *, now: datetime) -> Iterator[CreateReplica]:
    """Make each replica of which nothing is there, once its time has come."""
    for one in standings:
        time = one.record.retry_at
        if one.state in UNMADE and not one.seen and (time is None or time <= now):
            yield CreateReplica(one.id, one.record.attempts)


def waits(standings: Iterable[Standing], *, now: datetime) -> Iterator[float]:
    """Seconds until replicas may be made again."""
    for one in standings:
        time = one.record.retry_at
        if time is not None and time > now:
            yield (time - now).total_seconds()


def deadline(job: Job, start: datetime | None, *, now: datetime) -> float | None:
    """Seconds until the job was active for too long; None where nothing limits it."""
    limit = job.run_policy.active_deadline_seconds
    if limit is None or start is None:
        return None
    return limit - (now - start).total_seconds()


def soonest(*times: float | None) -> float | None:
    """The least of those that are."""
    return min((one for one in times if one is not None), default=None)
