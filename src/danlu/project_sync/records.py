"""What was last equal on both sides, on disk, so that an exchange can be cut off at any moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from danlu.project_sync.local_files import LocalFiles, ReceivedFile
from danlu.project_sync.types import FileState, SyncedFile
from danlu.util.decoding import convert_value
from danlu.util.files import read_existing_file, write_atomic

_VERSION = 2

T = TypeVar("T")


class _SavedRecords(msgspec.Struct, frozen=True):
    version: int
    volume: str
    files: dict[str, SyncedFile]
    outside: tuple[str, ...] = ()


class _FetchJournal(msgspec.Struct, frozen=True):
    """Files that are being fetched: first only their temporary names, then what has arrived."""

    temporary: tuple[str, ...] = ()
    received: tuple[ReceivedFile, ...] = ()


class SyncRecords:
    """The records of one copy, in ``file``; those of earlier versions are not read.

    ``outside`` are links that the user knows about.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._journal_file = file.with_name(f"{file.name}.fetching")
        saved = _read_value(file, _SavedRecords)
        if saved is None or saved.version != _VERSION:
            saved = _SavedRecords(_VERSION, "", {})
        self.volume = saved.volume
        self.files = saved.files
        self.outside = saved.outside

    def forget(self, volume: str) -> None:
        """Begin anew, with another copy."""
        self.volume, self.files, self.outside = volume, {}, ()

    def save(self) -> None:
        """Write the records."""
        saved = _SavedRecords(_VERSION, self.volume, self.files, self.outside)
        _write_value(self._file, saved)

    def mark_sent(self, states: dict[str, FileState]) -> None:
        """Record what may be on the other side from now on."""
        for path, state in states.items():
            known = self.files.get(path, SyncedFile())
            pending = (*(other for other in known.pending if other != state), state)
            self.files[path] = msgspec.structs.replace(known, pending=pending)
        self.save()

    def record_arrival(self, path: str, state: FileState, mode: int) -> None:
        """Record a file that has arrived here; ``mode`` is the one there."""
        there = msgspec.structs.replace(state, mode=mode)
        self.files[path] = SyncedFile(state, there)

    def begin_fetch(self, temporary: Mapping[str, str]) -> None:
        """Record under which names files will be written."""
        _write_value(self._journal_file, _FetchJournal(tuple(temporary.values())))

    def end_receiving(self, files: Sequence[ReceivedFile]) -> None:
        """Record what has been written: a file without its temporary name has got its own."""
        _write_value(self._journal_file, _FetchJournal(received=tuple(files)))

    def recover_fetch(self, local: LocalFiles) -> None:
        """Record what a fetch that was cut off has written; remove the rest."""
        journal = _read_value(self._journal_file, _FetchJournal)
        if journal is None:
            return
        for name in journal.temporary:
            local.discard(name)
        for file in journal.received:
            if local.exists(file.temporary):
                local.discard(file.temporary)
            else:
                self.record_arrival(file.path, file.state, file.state.mode)
        if journal.received:
            self.save()
        self._journal_file.unlink()


def _write_value(file: Path, value: msgspec.Struct) -> None:
    # Names that are not UTF-8 become escapes of surrogates, which msgspec does not write.
    data = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    write_atomic(file, data.encode(), mode=0o600)


def _read_value(file: Path, type: type[T]) -> T | None:
    data = read_existing_file(file)
    try:
        return None if data is None else convert_value(json.loads(data), type)
    except ValueError:
        return None
