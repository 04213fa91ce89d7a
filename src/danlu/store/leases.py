"""Leases: files that name what must stay, locked by ``flock`` while their owner lives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from danlu.oci.digest import DiffId
from danlu.store.core import Core, Kind
from danlu.store.staging import dead, new_file

__all__ = ["Held", "Lease", "held", "living"]


@dataclass
class Held:
    """The one lease file of an open store, shared by its leases."""

    path: Path
    descriptor: int
    holders: int = 0
    shared: bool = False


class Lease:
    """What :meth:`Store.lease` gives: keep more, or hand the lease to a child process."""

    def __init__(self, core: Core, held: Held) -> None:
        self._core = core
        self._held = held

    def keep(self, layers: Iterable[DiffId]) -> None:
        """Keep these layers too; those already gone stay gone (ask :meth:`Store.layer`)."""
        with self._core.reading():
            self._core.pin("layers", layers)

    def share(self) -> int:
        """A descriptor for ``pass_fds``: the lease then lasts as long as any child holds it."""
        self._held.shared = True
        return self._held.descriptor


@contextmanager
def held(core: Core) -> Iterator[Lease]:
    """Hold a lease of ``core``; see :meth:`Store.lease`."""
    with core.lock, core.faults:
        if core.lease is None:
            path, descriptor = new_file(core.leases)
            core.lease = Held(path, descriptor)
        mine = core.lease
        mine.holders += 1
    try:
        yield Lease(core, mine)
    finally:
        with core.lock:
            mine.holders -= 1
            if mine.holders == 0:
                core.lease = None
                core.pinned.clear()
                # A shared one outlives us: its file must stay, and goes when found unlocked.
                if not mine.shared:
                    with suppress(OSError):
                        mine.path.unlink()
                os.close(mine.descriptor)


def living(core: Core) -> set[tuple[Kind, str]]:
    """All that living leases keep; the files of dead ones are removed. The gate is closed."""
    kept: set[tuple[Kind, str]] = set()
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    for path in sorted(core.leases.iterdir()):
        with dead(path) as gone:
            if gone:
                path.unlink(missing_ok=True)
                continue
        text = ""
        with suppress(FileNotFoundError):  # it ended just now
            text = path.read_text()
        for line in text.splitlines():
            kind, _, identity = line.partition(" ")
            if kind in kinds and identity:
                kept.add((kinds[kind], identity))
    return kept
