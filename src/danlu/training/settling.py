"""What is written down of each replica once it is known what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import msgspec

from danlu.training import messages
from danlu.training.attempts import released
from danlu.training.restarts import counted, ended
from danlu.training.standing import Scene, Standing, State
from danlu.training.types import Event, Job, Pace, ReplicaRecord

__all__ = ["completed", "exits", "put_aside", "records", "refused", "settled"]


def settled(one: Standing, *, now: datetime, pace: Pace) -> Standing:
    """A replica of a job that goes on: its end recorded, its restart counted."""
    if one.state in (State.ENDED, State.LOST):
        record = counted(one.record, attempt=one.attempt, seen=one.seen, now=now, pace=pace)
        return msgspec.structs.replace(one, record=record)
    return refused(one) if one.state is State.FAILED else completed(one)


def completed(one: Standing) -> Standing:
    """A replica of which nothing is recorded but that it succeeded."""
    if one.state is not State.SUCCEEDED or one.record.completed:
        return one
    code = one.attempt.exit_code if one.attempt is not None else None
    record = msgspec.structs.replace(one.record, completed=True, exit_code=code, reason="")
    return msgspec.structs.replace(one, record=record)


def refused(one: Standing) -> Standing:
    """A replica of a job that failed: if it ended badly, then for good."""
    if one.state not in (State.FAILED, State.ENDED, State.LOST) or one.record.failed:
        return completed(one)
    code = one.attempt.exit_code if one.attempt is not None else None
    record = msgspec.structs.replace(
        one.record, failed=True, exit_code=code, reason=ended(one.attempt)
    )
    return msgspec.structs.replace(one, record=record)


def put_aside(one: Standing) -> Standing:
    """A replica of a suspended job: complete, or to be made again later without being counted."""
    record = released(completed(one).record, seen=one.seen)
    state = State.FAILED if record.failed else State.ABSENT
    state = State.SUCCEEDED if record.completed else state
    return msgspec.structs.replace(one, record=record, state=state)


def records(scene: Scene, standings: Iterable[Standing]) -> dict[str, ReplicaRecord]:
    """All records there are something in, those of replicas that are no more after the others."""
    nothing = ReplicaRecord()
    found: Mapping[str, ReplicaRecord] = {one.key: one.record for one in standings}
    return {key: one for key, one in {**found, **scene.records}.items() if one != nothing}


def exits(job: Job, scene: Scene) -> Iterator[Event]:
    """Tell once of each end that is recorded now."""
    for one in scene.standings:
        over = one.state in (State.SUCCEEDED, State.FAILED, State.ENDED)
        code = one.attempt.exit_code if one.attempt is not None else None
        if over and code is not None and not one.record.completed and not one.record.failed:
            yield Event("Normal", "ExitedWithCode", messages.exited(job, one.key, code))
