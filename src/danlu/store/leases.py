"""Leases: files that list protected objects, locked with ``flock`` while their owner lives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import get_args

from danlu.oci.digest import DiffId
from danlu.store.index import Kind, LeaseFile, StoreIndex
from danlu.store.staging import lock_if_orphan, new_file


class StoreLease:
    """Returned by :meth:`Store.lease`: protect more layers, or share it with a child process."""

    def __init__(self, index: StoreIndex, held: LeaseFile) -> None:
        self._index = index
        self._held = held

    def keep(self, layers: Iterable[DiffId]) -> None:
        """Protect these layers, too, if they still exist (see :meth:`Store.layer`)."""
        with self._index.reading():
            self._index.pin("layers", layers)

    def share(self) -> int:
        """Return a descriptor for ``pass_fds``: the lease then lasts until a child closes it."""
        self._held.shared = True
        return self._held.descriptor


@contextmanager
def hold_lease(index: StoreIndex) -> Iterator[StoreLease]:
    """Hold a lease on ``index``; see :meth:`Store.lease`."""
    with index.lock, index.translated_errors:
        if index.lease is None:
            path, descriptor = new_file(index.leases)
            index.lease = LeaseFile(path, descriptor)
        file = index.lease
        file.holders += 1
    try:
        yield StoreLease(index, file)
    finally:
        with index.lock:
            file.holders -= 1
            if file.holders == 0:
                index.lease = None
                index.pinned.clear()
                # A shared lease outlives this process. Its file must stay; garbage collection
                # removes it when it finds it unlocked.
                if not file.shared:
                    with suppress(OSError):
                        file.path.unlink()
                os.close(file.descriptor)


def read_live_pins(index: StoreIndex) -> set[tuple[Kind, str]]:
    """Return what live leases protect, and delete files of dead ones. The caller holds ``gate``."""
    pins: set[tuple[Kind, str]] = set()
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    for path in sorted(index.leases.iterdir()):
        with lock_if_orphan(path) as gone:
            if gone:
                path.unlink(missing_ok=True)
                continue
        text = ""
        with suppress(FileNotFoundError):  # the lease ended just now
            text = path.read_text()
        for line in text.splitlines():
            kind, _, identity = line.partition(" ")
            if kind in kinds and identity:
                pins.add((kinds[kind], identity))
    return pins
