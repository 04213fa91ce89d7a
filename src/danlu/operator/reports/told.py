"""How far a job is, and who of its replicas says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from danlu.training.progress import Progress

__all__ = ["PROGRESS", "SPEAKER", "Speaker", "Told"]

PROGRESS, SPEAKER = "progress", "speaker"
"""The keys of a job's ConfigMap."""

_TEXT = re.compile(r"(leader|replicas)/([a-z]*)-(\d{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Speaker:
    """The replica that tells; the smaller one counts: the leader, then by name and index.

    Which of them speaks first is not the same for every process of the operator.
    """

    aside: bool
    type: str
    index: int

    @classmethod
    def of(cls, role: str | None, replica: str | None) -> Speaker:
        """Of a path's ``leader`` or ``replicas``, and ``worker-0``; one path has neither."""
        kind, _, index = (replica or "").rpartition("-")
        return cls(role != "leader", kind, int(index or 0))

    @classmethod
    def read(cls, text: str) -> Speaker | None:
        """What :meth:`__str__` gave; None for anything else."""
        found = _TEXT.fullmatch(text)
        return cls.of(found[1], f"{found[2]}-{found[3]}") if found else None

    def __str__(self) -> str:
        role = "replicas" if self.aside else "leader"
        return f"{role}/{self.type}-{self.index}"


@dataclass(frozen=True, slots=True)
class Told:
    """One telling, as it is kept: ``text`` is JSON of a :class:`Progress`."""

    speaker: Speaker
    text: str
    updated: datetime | None

    @classmethod
    def of(cls, speaker: Speaker, progress: Progress) -> Told:
        """What a replica posted."""
        return cls(speaker, msgspec.json.encode(progress).decode(), progress.updated)

    @classmethod
    def read(cls, data: Mapping[str, str]) -> Told | None:
        """What a ConfigMap has; None where nothing that can be read."""
        text, speaker = data.get(PROGRESS, ""), Speaker.read(data.get(SPEAKER, ""))
        try:
            progress = msgspec.json.decode(text, type=Progress)
        except msgspec.MsgspecError:
            return None
        return cls(speaker, text, progress.updated) if speaker else None

    def data(self) -> dict[str, str]:
        """It as data of a ConfigMap."""
        return {PROGRESS: self.text, SPEAKER: str(self.speaker)}

    def follows(self, other: Told) -> bool:
        """Whether it is to stand in place of what another process kept."""
        if self.speaker != other.speaker:
            return self.speaker < other.speaker
        return not (self.updated and other.updated) or self.updated >= other.updated
