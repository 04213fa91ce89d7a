"""Send what was changed in a project, and fetch what was made in its copy.

The rules, for each path:

* A side has changed a file if its content or mode is not what it was when both were last equal
  (:class:`~danlu.project_sync.records.SyncRecords`). Times do not count.
* A change here is sent; if the file was changed there, too, that version gets a free name there.
* A change there is fetched; if the file was changed here, too, it gets a free name here.
* What is removed here is removed there, unless it was changed there or is ignored here. What is
  removed there stays here.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path

import msgspec

from danlu.errors import OutsideError
from danlu.project_sync.local_files import LocalFiles
from danlu.project_sync.records import ReceivedFile, SyncRecords, read_records
from danlu.project_sync.remote_files import RemoteFile, RemoteFiles, render_change
from danlu.project_sync.types import (
    STAGE_NAME,
    CopyPlace,
    FileState,
    ScriptRunner,
    SyncedFile,
    SyncReport,
    list_parents,
    stays_inside,
)
from danlu.util.locks import file_lock

_BATCH_SIZE = 64 << 20
_BATCH_FILES = 500
_ARCHIVE_OVERHEAD = 64 << 20
_UNKNOWN = SyncedFile()


class ProjectCopy:
    """A project and its copy on another side; ``records_file`` keeps what was exchanged.

    All methods block, and raise :class:`~danlu.errors.DanluError`.
    """

    def __init__(
        self, runner: ScriptRunner, project: Path, records_file: Path, place: CopyPlace
    ) -> None:
        self._project = project
        self._records_file = records_file
        self._place = place
        self._remote = RemoteFiles(runner, place)
        self._local = LocalFiles(project, records_file.with_name(f"{records_file.name}.digests"))
        self._records = SyncRecords()

    @contextmanager
    def _open_records(self) -> Iterator[None]:
        """Exclude other processes, and turn errors of this machine's files into ours."""
        try:
            with file_lock(f"{self._records_file}.lock"):
                self._records = read_records(self._records_file)
                self._finish_fetch()
                try:
                    yield
                finally:
                    self._finish_fetch()
                    self._save_records()
        except OSError as error:
            reason = error.strerror or str(error)
            name = f" {error.filename}" if isinstance(error.filename, str) else ""
            raise OutsideError(f"cannot copy {self._project}:{name}: {reason}") from error

    def _save_records(self) -> None:
        self._records.save(self._records_file)

    def _list_remote(self) -> dict[str, RemoteFile]:
        """List the copy, and find out which versions that were sent have arrived."""
        volume, listing = self._remote.list_files()
        if volume != self._records.volume:
            self._records = SyncRecords(volume=volume)
        records = self._records.files
        unsure = [path for path, known in records.items() if known.pending]
        states = self._read_states(listing, unsure)
        for path in unsure:
            known, state = records[path], states.get(path)
            arrived = [sent for sent in known.pending if sent.has_content_of(state)]
            if arrived:
                records[path] = SyncedFile(arrived[0], state)
            elif known.here is None:
                del records[path]
            else:
                records[path] = msgspec.structs.replace(known, pending=())
        return listing

    def _read_states(
        self, listing: Mapping[str, RemoteFile], paths: Iterable[str]
    ) -> dict[str, FileState]:
        """Return what paths are there; files that look as before are not read again."""
        records = self._records.files
        states = {}
        unread = {}
        for path in paths:
            known = records.get(path, _UNKNOWN)
            if path not in listing:
                continue
            if known.there is not None and listing[path].stat == known.hint:
                states[path] = msgspec.structs.replace(known.there, mode=listing[path].mode)
            else:
                unread[path] = listing[path]
        for path, state in self._remote.read_states(unread).items():
            states[path] = state
            if path in records and state.has_content_of(records[path].there):
                records[path] = msgspec.structs.replace(records[path], hint=unread[path].hint)
        return states

    # -- sending ----------------------------------------------------------------------------------

    def send_changes(self) -> SyncReport:
        """Copy what was changed here; the other side's versions of such files are kept there."""
        with self._open_records():
            here, outside = self._local.list_files()
            records = self._records
            gone = self._local.list_removals([p for p in records.files if p not in here], outside)
            new_links = [path for path in outside if path not in records.outside]
            is_known = bool(self._place.volume) and self._place.volume == records.volume
            if is_known and not gone and not new_links and not self._list_unsent(here):
                return SyncReport()
            report = SyncReport(outside=new_links)
            self._send_files(here, gone, self._list_remote(), report)
            self._records.outside = outside
            return report

    def _list_unsent(self, here: Mapping[str, FileState]) -> list[str]:
        known = {path: self._records.files.get(path, _UNKNOWN) for path in sorted(here)}
        return [path for path in known if known[path].here != here[path] or known[path].pending]

    def _send_files(
        self,
        here: Mapping[str, FileState],
        gone: Iterable[str],
        listing: Mapping[str, RemoteFile],
        report: SyncReport,
    ) -> None:
        records = self._records.files
        gone = [path for path in gone if path in records]  # all may be unknown by now
        unsent = self._list_unsent(here)
        there = self._read_states(listing, {*unsent, *gone})
        report.removed = [
            path
            for path in gone
            if path in there and there[path].has_content_of(records[path].there)
        ]
        # What may be replaced or removed, if it still looks like this.
        expected = defaultdict(
            str,
            {
                path: listing[path].stat
                for path in report.removed
                if there[path].kind != "directory"
            },
        )
        files, directories = [], set()
        for path in unsent:
            state, other, known = here[path], there.get(path), records.get(path, _UNKNOWN)
            is_directory = state.kind == "directory"
            if other is not None and state.has_content_of(other):
                if state.mode == other.mode or (is_directory and known.here is None):
                    records[path] = SyncedFile(state, other)
                    continue
            elif other is not None and not other.has_content_of(known.there):
                other = None  # it is kept
            if other is not None and other.kind != "directory":
                expected[path] = listing[path].stat
            if is_directory:
                directories.add(path)
            else:
                files.append(path)
        directories |= {
            parent
            for path in (*files, *directories)
            for parent in list_parents(path)
            if parent not in listing or listing[parent].kind != "directory"
        }
        removals = [*report.removed, *(path for path in directories if path in expected)]
        plan = render_change(
            "remove", expected, sorted(removals, key=_count_parents, reverse=True), required=False
        )
        modes = {path: here[path].mode if path in here else 0o755 for path in directories}
        for path in sorted(directories, key=_count_parents):
            plan += render_change("make_directories", {path: f"{modes[path]:o}"}, [path])
        if plan or files:
            made = {path: here[path] for path in directories if path in here}
            self._send_batches(plan, made, {path: here[path] for path in files}, expected, report)
        for path in gone:
            records.pop(path, None)
        report.removed = [path for path in report.removed if expected[path]]

    def _send_batches(
        self,
        plan: str,
        made: Mapping[str, FileState],
        files: Mapping[str, FileState],
        expected: Mapping[str, str],
        report: SyncReport,
    ) -> None:
        """Do what is planned, and send files."""
        sent: dict[str, FileState] = {}
        for batch in list(_split_batches(self._local.read_sizes(files))) or [[]]:
            with tempfile.TemporaryFile(dir=self._records_file.parent) as file:
                # In GNU's format: BusyBox ignores the long names of newer ones.
                with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
                    added = self._local.write_files(archive, {path: files[path] for path in batch})
                    script = os.fsencode(plan + render_change("place", expected, added))
                    member = tarfile.TarInfo("plan")
                    member.size = len(script)
                    archive.addfile(member, BytesIO(script))
                # From now on it may be there, whatever happens to the connection.
                self._records.mark_sent(added if sent else {**made, **added})
                self._save_records()
                file.seek(0)
                report.conflicts += self._remote.apply(file)
            sent |= {**made, **added}
            plan = ""
        _, arrived = self._remote.list_files()
        for path, state in sent.items():
            if path in arrived and arrived[path].kind == state.kind:
                # The file system there may not have all modes.
                self._records.mark_equal(path, state, arrived[path].mode)
        report.copied = list(files)

    # -- fetching ---------------------------------------------------------------------------------

    def fetch_changes(
        self, patterns: Sequence[str] = (), *, only: Collection[str] = ()
    ) -> SyncReport:
        """Copy what was made or changed there; versions here of such files are kept.

        Ignored files stay there, unless ``patterns`` (of paths, or of directories above them) are
        given: then exactly what matches is fetched. ``only`` restricts it to some paths.
        """
        with self._open_records():
            listing = self._list_remote()
            files = {
                path: file
                for path, file in listing.items()
                if file.kind != "directory"
                and (not only or path in only)
                and (not patterns or _matches_pattern(path, patterns))
            }
            ignored = set() if patterns else self._local.find_excludes(files)
            changed = self._compare_contents(files, ignored)
            if patterns:
                changed |= {path for path in files if not self._local.exists(path)}
            report = SyncReport(ignored=sorted(ignored & changed))
            sizes = {path: files[path].size for path in sorted(changed - ignored)}
            for batch in _split_batches(sizes):
                self._fetch_batch(batch, listing, report)
            return report

    def _compare_contents(self, files: Mapping[str, RemoteFile], ignored: set[str]) -> set[str]:
        """Return what was made or changed there since both sides were equal."""
        records = self._records.files
        compared = [
            path
            for path in files
            if path in records or (path not in ignored and self._local.exists(path))
        ]
        changed = set(files)
        for path, state in self._read_states(files, compared).items():
            known = records.get(path, _UNKNOWN)
            if known.there is None and state.has_content_of(here := self._local.describe(path)):
                known = records[path] = SyncedFile(here, state)
            if state == known.there:
                changed.discard(path)
        return changed

    def _fetch_batch(
        self, batch: Sequence[str], listing: Mapping[str, RemoteFile], report: SyncReport
    ) -> None:
        limit = 2 * sum(listing[path].size for path in batch) + _ARCHIVE_OVERHEAD
        temporary = {path: f"{STAGE_NAME}.{os.urandom(8).hex()}" for path in batch}
        with tempfile.TemporaryFile(dir=self._records_file.parent) as archive:
            self._remote.pack_files(batch, archive, limit=limit)
            archive.seek(0)
            self._records.temporary = tuple(temporary.values())
            self._save_records()
            received = self._local.receive(archive, temporary, listing)
        found = {file.path for file in received}
        report.skipped += [path for path in batch if path not in found]
        self._records.temporary, self._records.received = (), tuple(received)
        self._save_records()
        for file in received:
            self._place_file(file, report)
        self._finish_fetch()

    def _place_file(self, file: ReceivedFile, report: SyncReport) -> None:
        if file.state.kind == "link" and not stays_inside(file.path, file.state.content):
            report.outside.append(file.path)
            return
        name = self._local.place(file, self._records.files.get(file.path, _UNKNOWN).here)
        if name is None:
            report.skipped.append(file.path)
            return
        report.copied.append(name)
        if name != file.path:
            report.conflicts.append(name)

    def _finish_fetch(self) -> None:
        """Note what a fetch has written, which may have been cut off, and remove the rest."""
        records = self._records
        unfinished = list(records.temporary)
        for file in records.received:
            # A file without its temporary name has got its own.
            if self._local.exists(file.temporary):
                unfinished.append(file.temporary)
            else:
                records.mark_equal(file.path, file.state, file.state.mode)
        if unfinished or records.received:
            records.temporary, records.received = tuple(unfinished), ()
            self._save_records()  # before they are gone, too
        for name in unfinished:
            self._local.discard(name)
        records.temporary = ()


def _count_parents(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _matches_pattern(path: str, patterns: Sequence[str]) -> bool:
    names = (path, *list_parents(path))
    return any(fnmatchcase(name, pattern.rstrip("/")) for name in names for pattern in patterns)


def _split_batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield paths that are exchanged together: what has arrived is not sent again after a cut."""
    batch: list[str] = []
    total = 0
    for path, size in sizes.items():
        if batch and (total + size > _BATCH_SIZE or len(batch) == _BATCH_FILES):
            yield batch
            batch, total = [], 0
        batch.append(path)
        total += size
    if batch:
        yield batch
