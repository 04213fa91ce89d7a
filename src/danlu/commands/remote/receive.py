"""The other side of :mod:`danlu.commands.remote.project_sync`, run there over SSH.

::

    python -m danlu.commands.remote.receive push   # an offer on stdin: write what was changed
    python -m danlu.commands.remote.receive fetch  # an offer on stdin: send what was changed here
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from danlu.engine.project_files import (
    CONFLICT_SUFFIX,
    ChangeList,
    FileRecord,
    ProjectOffer,
    ProjectRequest,
    ProjectResult,
    decode_value,
    describe_path,
    encode_value,
    list_files,
    read_contents,
    read_message,
    write_contents,
    write_message,
)
from danlu.errors import DanluError, UsageError
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from danlu.util.safe_paths import open_beneath, split_beneath

_KEY = re.compile(r"[0-9a-f]{16}")


class ProjectCopy:
    """The copy of a project on this machine, and the records of what was received last."""

    def __init__(self, place: Path, name: str) -> None:
        self.root = place / name
        self._records_file = place / "files.json"
        self.root.mkdir(parents=True, exist_ok=True)
        self.records = self._read_records()

    def find_wanted(self, offered: tuple[FileRecord, ...]) -> list[FileRecord]:
        """Return the offered files whose content is needed."""
        return [
            record
            for record in offered
            if record.kind == "file"
            and (self.records.get(record.path) != record or not self._file_exists(record.path))
            and describe_path(self.root, record.path) != record
        ]

    def make_room(self, offered: Iterable[FileRecord]) -> list[str]:
        """Rename what was changed here and is in the way of an offer; return these paths."""
        return [record.path for record in offered if self._is_in_the_way(record)]

    def _is_in_the_way(self, record: FileRecord) -> bool:
        """Remove what ``record`` replaces; rename it if it was changed here, and return True."""
        here = describe_path(self.root, record.path)
        if here is None or here == record or here.kind == record.kind == "directory":
            return False
        if here.kind == "file" and here != self.records.get(record.path):
            self._keep_entry(record.path)
            return True
        # Files are replaced when they arrive.
        if here.kind != "file" or record.kind != "file":
            self._remove_entry(record.path)
        if here.kind == "directory" and self._file_exists(record.path):
            self._keep_entry(record.path)
            return True
        return False

    def _keep_entry(self, path: str) -> None:
        """Give an entry a name that is free."""
        *parents, name = split_beneath(path)
        with open_beneath(self.root, parents) as directory:
            copy = name + CONFLICT_SUFFIX.encode()
            for number in count(2):
                try:
                    os.stat(copy, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    break
                copy = name + f"{CONFLICT_SUFFIX}.{number}".encode()
            os.rename(name, copy, src_dir_fd=directory, dst_dir_fd=directory)

    def make_others(self, offered: Iterable[FileRecord]) -> None:
        """Make directories and links."""
        for record in offered:
            if describe_path(self.root, record.path) == record:
                continue
            parts = split_beneath(record.path)
            if record.kind == "directory":
                with open_beneath(self.root, parts, create=True):
                    pass
            else:
                with open_beneath(self.root, parts[:-1], create=True) as directory:
                    os.symlink(os.fsencode(record.target), parts[-1], dir_fd=directory)

    def remove_others(self, offered: tuple[FileRecord, ...]) -> None:
        """Remove what was received earlier and is no longer offered, unless it was changed here."""
        kept = {record.path for record in offered}
        for path in sorted(self.records, reverse=True):
            if path not in kept and describe_path(self.root, path) == self.records[path]:
                self._remove_entry(path)

    def write_records(self, records: tuple[FileRecord, ...]) -> None:
        """Remember what was received."""
        write_atomic(self._records_file, encode_value(records))
        self.records = {record.path: record for record in records}

    def list_changes(self) -> list[FileRecord]:
        """Return the files that were made or changed here."""
        return [
            record
            for record in list_files(self.root)
            if record.kind == "file" and self.records.get(record.path) != record
        ]

    def _file_exists(self, path: str) -> bool:
        return describe_path(self.root, path) is not None

    def _remove_entry(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        *parents, name = split_beneath(path)
        with (
            suppress(FileNotFoundError, UsageError),
            open_beneath(self.root, parents) as directory,
        ):
            try:
                os.unlink(name, dir_fd=directory)
            except (IsADirectoryError, PermissionError):
                with suppress(OSError):  # not empty: something in it was made here
                    os.rmdir(name, dir_fd=directory)

    def _read_records(self) -> dict[str, FileRecord]:
        try:
            data = self._records_file.read_bytes()
            records = decode_value(data, tuple[FileRecord, ...])
        except (FileNotFoundError, ValueError):
            return {}
        return {record.path: record for record in records}


def receive_project(paths: Paths, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer an offer: request what is needed, write it, and report conflicts."""
    offer = read_message(source, ProjectOffer)
    place = project_place(paths, offer)
    with file_lock(place / "lock"):
        copy = ProjectCopy(place, offer.name)
        wanted = copy.find_wanted(offer.files)
        write_message(sink, ProjectRequest(str(copy.root), tuple(item.path for item in wanted)))
        copy.remove_others(offer.files)
        others = [record for record in offer.files if record.kind != "file"]
        conflicts = copy.make_room((*wanted, *others))
        copy.make_others(others)
        targets = {record.path: record.path for record in wanted}
        # A file may change while it is sent: what has arrived is remembered, not what was offered.
        arrived: Mapping[str, FileRecord] = {
            record.path: record for record in read_contents(source, copy.root, targets)
        }
        lost = set(targets) - set(arrived)
        records = (arrived.get(item.path, item) for item in offer.files if item.path not in lost)
        copy.write_records(tuple(records))
    write_message(sink, ProjectResult(tuple(conflicts)))


def send_changes(paths: Paths, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer an offer with the files that were made or changed here."""
    offer = read_message(source, ProjectOffer)
    place = project_place(paths, offer)
    with file_lock(place / "lock"):
        copy = ProjectCopy(place, offer.name)
        changes = [
            record for record in copy.list_changes() if not offer.only or record.path in offer.only
        ]
        write_message(sink, ChangeList(tuple(changes)))
        write_contents(sink, copy.root, (record.path for record in changes))


def project_place(paths: Paths, offer: ProjectOffer) -> Path:
    """Return where the copy of a project is kept; raise :class:`UsageError` if it is invalid."""
    # Both come from the other machine and become parts of paths.
    if not _KEY.fullmatch(offer.key) or offer.name in ("", ".", "..") or "/" in offer.name:
        raise UsageError("invalid project")
    return paths.data / "projects" / offer.key


_ACTIONS: Mapping[str, Callable[[Paths, BinaryIO, BinaryIO], None]] = {
    "push": receive_project,
    "fetch": send_changes,
}


def main(action: str) -> int:
    """Run an action; return the exit code."""
    try:
        _ACTIONS[action](Paths.of(), sys.stdin.buffer, sys.stdout.buffer)
    except DanluError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    except EOFError:
        print("the connection was closed", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
