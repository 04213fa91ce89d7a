"""What was written of each job, until the cache shows it.

A decision that is made of an old status would be made twice: an event told again, a restart counted
again. So the status that was written last counts for as long as the cache shows one of the versions
that it replaced. Versions are compared for being the same only, as Kubernetes wants it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from danlu.kube.clock import REAL
from danlu.kube.types import Clock, ObjectMeta
from danlu.training.types import JobStatus

__all__ = ["Written"]


@dataclass(slots=True)
class _Last:
    """The last write: when, and while the cache is behind what it wrote over which versions."""

    at: float
    version: str = ""
    status: JobStatus | None = None
    replaced: set[str] = field(default_factory=set)


class Written:
    """The last status written of each job by its uid."""

    def __init__(self, *, clock: Clock = REAL) -> None:
        self._clock = clock
        self._last: dict[str, _Last] = {}

    def __len__(self) -> int:
        """Of how many jobs something is remembered."""
        return len(self._last)

    def newest(self, seen: ObjectMeta, status: JobStatus) -> tuple[str, JobStatus]:
        """Version and status that count: what the cache has, or what was written since."""
        last = self._last.get(seen.uid)
        if last is None or last.status is None:
            return seen.resource_version, status
        if seen.resource_version in last.replaced:
            return last.version, last.status
        self._caught_up(last)
        return seen.resource_version, status

    def keep(self, seen: ObjectMeta, *, over: str, version: str, status: JobStatus) -> None:
        """A status was written over a version and made another; the cache shows ``seen``."""
        last = self._last.setdefault(seen.uid, _Last(0.0))
        last.at = self._clock.monotonic()
        last.replaced |= {seen.resource_version, over}
        last.version, last.status = version, status

    def echoed(self, seen: ObjectMeta) -> bool:
        """Whether the cache has come to show just what was written last."""
        last = self._last.get(seen.uid)
        if last is None or last.status is None or seen.resource_version != last.version:
            return False
        self._caught_up(last)
        return True

    def since(self, uid: str) -> float:
        """Seconds since a status of the job was written; much where none was."""
        last = self._last.get(uid)
        return float("inf") if last is None else self._clock.monotonic() - last.at

    def forget(self, uid: str) -> None:
        """The job is no more."""
        self._last.pop(uid, None)

    @staticmethod
    def _caught_up(last: _Last) -> None:
        last.status = None
        last.replaced.clear()
