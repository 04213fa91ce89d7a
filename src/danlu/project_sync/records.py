"""What was last equal on both sides, on disk, so that an exchange can be cut off at any moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.project_sync.types import FileState, SyncedFile
from danlu.util.decoding import convert_value
from danlu.util.files import read_existing_file, write_atomic

_VERSION = 2


class ReceivedFile(msgspec.Struct, frozen=True, array_like=True):
    """A fetched file that has a temporary name in the project's directory until it gets its own.

    There, because directories below it may be renamed before an interrupted fetch is cleaned up.
    """

    path: str
    temporary: str
    state: FileState


class SyncRecords(msgspec.Struct):
    """The records of a copy on ``volume``.

    ``outside`` are links that the user knows about. ``temporary`` are names of files that are being
    fetched; ``received`` are files that have arrived completely, and are getting their names.
    """

    version: int = _VERSION
    volume: str = ""
    files: dict[str, SyncedFile] = {}
    outside: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    received: tuple[ReceivedFile, ...] = ()

    def save(self, file: Path) -> None:
        """Write the records if they have changed."""
        # Names that are not UTF-8 become escapes of surrogates, which msgspec does not write.
        data = json.dumps(msgspec.to_builtins(self), separators=(",", ":")).encode()
        if read_existing_file(file) != data:
            write_atomic(file, data, mode=0o600)

    def mark_sent(self, states: Mapping[str, FileState]) -> None:
        """Note what may be on the other side from now on."""
        for path, state in states.items():
            known = self.files.get(path, SyncedFile())
            pending = (*(other for other in known.pending if other != state), state)
            self.files[path] = msgspec.structs.replace(known, pending=pending)

    def mark_equal(self, path: str, state: FileState, mode: int) -> None:
        """Note that both sides have a file; ``mode`` is the one there."""
        self.files[path] = SyncedFile(state, msgspec.structs.replace(state, mode=mode))


def read_records(file: Path) -> SyncRecords:
    """Read records; those of earlier versions and damaged ones count as none."""
    try:
        records = convert_value(json.loads(read_existing_file(file) or b"{}"), SyncRecords)
    except ValueError:
        return SyncRecords()
    return records if records.version == _VERSION else SyncRecords()
