"""Events of decisions whose status was sent and never answered.

It may have been written all the same, and then the decision is not made again. So what it says is
kept, and told when the job turns out to have that status.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.kube.types import Document
from danlu.training.manifest import status_document
from danlu.training.types import Event, JobStatus

__all__ = ["Untold"]

#: Tries that are remembered of a job; each of them may be the one that arrived.
_TRIES = 16


class Untold:
    """Knows by the job's uid what was to be told with a status that may have been written."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[Document, Sequence[Event]]]] = {}

    def __len__(self) -> int:
        """Of how many jobs something is remembered."""
        return len(self._kept)

    def keep(self, uid: str, status: JobStatus, events: Sequence[Event]) -> None:
        """A status was sent with these events to tell, and no answer came."""
        if events:
            tries = [*self._kept.get(uid, ()), (_essence(status), events)]
            self._kept[uid] = tries[-_TRIES:]

    def told_by(self, uid: str, status: JobStatus) -> Sequence[Event]:
        """What is to be told now that the job has this status; once."""
        tries = self._kept.get(uid)
        if tries is None:
            return ()
        essence = _essence(status)
        found = [events for one, events in tries if one == essence]
        if not found:
            return ()
        self.forget(uid)
        return found[-1]

    def forget(self, uid: str) -> None:
        """Another status was written and its events told, or the job is no more."""
        self._kept.pop(uid, None)


def _essence(status: JobStatus) -> Document:
    """A status without when it was written, which is not known of one that is yet to be."""
    document = status_document(status)
    document.pop("lastReconcileTime", None)
    return document
