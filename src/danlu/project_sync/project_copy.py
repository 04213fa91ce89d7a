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
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from danlu.errors import OutsideError
from danlu.project_sync.local_files import LocalFiles, ReceivedFile, add_bytes, create_archive
from danlu.project_sync.records import SyncRecords
from danlu.project_sync.remote_files import RemoteFile, RemoteFiles, RemoteListing, RemotePlan
from danlu.project_sync.types import (
    STAGE_NAME,
    CopyPlace,
    FetchReport,
    FileState,
    ScriptRunner,
    SendReport,
    SyncedFile,
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
        self._name = runner.name
        self._local = LocalFiles(project, records_file.with_name(f"{records_file.name}.digests"))
        self._records = SyncRecords(records_file)

    @contextmanager
    def _open_exchange(self) -> Iterator[None]:
        """Exclude other processes, and turn errors of this machine's files into ours."""
        try:
            with file_lock(f"{self._records_file}.lock"):
                self._records = SyncRecords(self._records_file)
                self._records.recover_fetch(self._local)
                try:
                    yield
                finally:
                    self._records.recover_fetch(self._local)
        except OSError as error:
            reason = error.strerror or str(error)
            name = f" {error.filename}" if isinstance(error.filename, str) else ""
            raise OutsideError(f"cannot copy {self._project}:{name}: {reason}") from error

    def _list_remote(self) -> RemoteListing:
        """List the copy, and find out which versions that were sent have arrived."""
        listing = self._remote.list_files()
        records = self._records
        if listing.volume != records.volume:
            records.forget(listing.volume)
        unsure = [path for path, known in records.files.items() if known.pending]
        states = self._read_states(listing, unsure)
        for path in unsure:
            known, state = records.files[path], states.get(path)
            arrived = [sent for sent in known.pending if sent.has_content_of(state)]
            if arrived:
                records.files[path] = SyncedFile(arrived[0], state)
            elif known.here is None:
                del records.files[path]
            else:
                records.files[path] = msgspec.structs.replace(known, pending=())
        return listing

    def _read_states(
        self, listing: RemoteListing, paths: Collection[str]
    ) -> Mapping[str, FileState]:
        """Return what paths are there; files that look as before are not read again."""
        states = {}
        unread = {}
        for path in paths:
            file = listing.files.get(path)
            known = self._records.files.get(path, _UNKNOWN).there
            if file is None:
                continue
            if known is not None and file.stat == self._records.files[path].hint:
                states[path] = msgspec.structs.replace(known, mode=file.mode)
            else:
                unread[path] = file
        for path, state in self._remote.read_states(unread).items():
            states[path] = state
            record = self._records.files.get(path, _UNKNOWN)
            if state.has_content_of(record.there):
                hint = unread[path].hint
                self._records.files[path] = msgspec.structs.replace(record, hint=hint)
        return states

    # -- sending ----------------------------------------------------------------------------------

    def send_changes(self) -> SendReport:
        """Copy what was changed here; the other side's versions of such files are kept there."""
        with self._open_exchange():
            here, outside = self._local.list_files()
            records = self._records
            gone = self._local.list_removals([p for p in records.files if p not in here], outside)
            new_links = tuple(path for path in outside if path not in records.outside)
            is_known = bool(self._place.volume) and self._place.volume == records.volume
            if is_known and not gone and not new_links and not self._find_unsent(here):
                return SendReport()
            listing = self._list_remote()
            gone = [path for path in gone if path in records.files]  # unless all is unknown now
            report = self._send_files(here, self._find_unsent(here), gone, listing)
            records.outside = outside
            records.save()
            return msgspec.structs.replace(report, outside=new_links)

    def _find_unsent(self, here: Mapping[str, FileState]) -> list[str]:
        found = []
        for path in sorted(here):
            known = self._records.files.get(path, _UNKNOWN)
            if known.here != here[path] or known.pending:
                found.append(path)
        return found

    def _send_files(
        self,
        here: Mapping[str, FileState],
        unsent: Sequence[str],
        gone: Sequence[str],
        listing: RemoteListing,
    ) -> SendReport:
        there = self._read_states(listing, {*unsent, *gone})
        files: dict[str, bool] = {}  # whether the other side's version is replaced, not kept
        directories: set[str] = set()
        removed = []
        plan = RemotePlan()
        for path in unsent:
            state, other = here[path], there.get(path)
            known = self._records.files.get(path, _UNKNOWN)
            is_same = state.has_content_of(other)
            has_mode = other is not None and state.mode == other.mode
            if is_same and (has_mode or (state.kind == "directory" and known.here is None)):
                self._records.files[path] = SyncedFile(state, other)
                continue
            is_ours = other is not None and (is_same or other.has_content_of(known.there))
            is_file = other is not None and other.kind != "directory"
            if state.kind != "directory":
                files[path] = is_ours and is_file
            else:
                directories.add(path)
                if is_ours and is_file:
                    removed.append(path)
        directories |= {
            parent
            for path in (*files, *directories)
            for parent in list_parents(path)
            if parent not in listing.files or listing.files[parent].kind != "directory"
        }
        lost = [
            path
            for path in gone
            if path in there and there[path].has_content_of(self._records.files[path].there)
        ]
        self._plan_removals(plan, (*removed, *lost), listing)
        for path in files:
            if path in there and there[path].kind == "directory":
                plan.add("make_room", [path])
        modes = {path: here[path].mode if path in here else 0o755 for path in directories}
        for path in sorted(directories, key=_count_parents):
            plan.add("make_directories", [path], mode=modes[path])
        conflicts: tuple[str, ...] = ()
        if plan or files:
            made = {path: here[path] for path in directories if path in here}
            conflicts = self._send_batches(plan, made, here, files, listing)
        for path in gone:
            self._records.files.pop(path, None)
        shown = (path for path in lost if there[path].kind != "directory")
        return SendReport(len(files), conflicts, tuple(sorted(shown)))

    def _plan_removals(
        self, plan: RemotePlan, paths: Sequence[str], listing: RemoteListing
    ) -> None:
        """Plan what is removed: files, then directories if they are empty, the deepest first."""
        files = sorted(path for path in paths if listing.files[path].kind != "directory")
        plan.add("remove", files, expected=listing.files, required=False)
        directories = [path for path in paths if listing.files[path].kind == "directory"]
        for path in sorted(directories, key=_count_parents, reverse=True):
            plan.add("remove_empty", [path], required=False)

    def _send_batches(
        self,
        plan: RemotePlan,
        made: Mapping[str, FileState],
        here: Mapping[str, FileState],
        files: Mapping[str, bool],
        listing: RemoteListing,
    ) -> tuple[str, ...]:
        """Do what is planned and send files; return new names of those that were in the way."""
        sent: dict[str, FileState] = {}
        conflicts: list[str] = []
        added: Mapping[str, FileState] = made
        for batch in list(_split_batches(self._local.read_sizes(files))) or [[]]:
            with tempfile.TemporaryFile(dir=self._records_file.parent) as file:
                with create_archive(file) as archive:
                    read = self._local.write_files(archive, {path: here[path] for path in batch})
                    plan.add("create", [path for path in read if not files[path]])
                    old = [path for path in read if files[path]]
                    plan.add("replace", old, expected=listing.files)
                    add_bytes(archive, "plan", plan.render())
                added = {**added, **read}
                # From now on it may be there, whatever happens to the connection.
                self._records.mark_sent(added)
                file.seek(0)
                conflicts += self._remote.apply(file)
            sent |= added
            plan, added = RemotePlan(), {}
        arrived = self._remote.list_files().files
        for path, state in sent.items():
            found = arrived.get(path)
            if found is not None and found.kind == state.kind:
                # The file system there may not have all modes.
                other = msgspec.structs.replace(state, mode=found.mode)
                self._records.files[path] = SyncedFile(state, other)
        return tuple(conflicts)

    # -- fetching ---------------------------------------------------------------------------------

    def fetch_changes(
        self, patterns: Sequence[str] = (), *, only: Collection[str] = ()
    ) -> FetchReport:
        """Copy what was made or changed there; versions here of such files are kept.

        Ignored files stay there, unless ``patterns`` (of paths, or of directories above them) are
        given: then exactly what matches is fetched. ``only`` restricts it to some paths.
        """
        with self._open_exchange():
            listing = self._list_remote()
            candidates = {
                path: file
                for path, file in listing.files.items()
                if file.kind != "directory"
                and (not only or path in only)
                and (not patterns or _matches_pattern(path, patterns))
            }
            ignored = set() if patterns else self._local.find_excludes(candidates)
            changed = self._compare_contents(listing, candidates, ignored)
            if patterns:
                changed |= {path for path in candidates if not self._local.exists(path)}
            report = FetchReport(ignored=sorted(ignored & changed))
            wanted = {path: candidates[path] for path in sorted(changed - ignored)}
            self._fetch_files(wanted, listing, report)
            self._records.save()
            return report

    def _compare_contents(
        self, listing: RemoteListing, candidates: Mapping[str, RemoteFile], ignored: set[str]
    ) -> set[str]:
        """Return what was made or changed there since both sides were equal."""
        records = self._records.files
        compared = [
            path
            for path in candidates
            if path in records or (path not in ignored and self._local.exists(path))
        ]
        changed = set(candidates)
        for path, state in self._read_states(listing, compared).items():
            known = records.get(path, _UNKNOWN)
            if state == known.there:
                changed.discard(path)
            elif known.there is None and state.has_content_of(here := self._local.describe(path)):
                records[path] = SyncedFile(here, state)
                changed.discard(path)
        return changed

    def _fetch_files(
        self, files: Mapping[str, RemoteFile], listing: RemoteListing, report: FetchReport
    ) -> None:
        for batch in _split_batches({path: file.size for path, file in files.items()}):
            limit = 2 * sum(files[path].size for path in batch) + _ARCHIVE_OVERHEAD
            with tempfile.TemporaryFile(dir=self._records_file.parent) as archive:
                self._remote.pack_files(batch, archive, limit=limit)
                archive.seek(0)
                temporary = {path: f"{STAGE_NAME}.{os.urandom(8).hex()}" for path in batch}
                self._records.begin_fetch(temporary)
                received, blocked = self._local.receive(archive, temporary, listing.files)
            report.skipped += blocked
            found = {file.path for file in received}
            report.skipped += [path for path in batch if path not in found and path not in blocked]
            self._records.end_receiving(received)
            unplaced = {
                file.path: file.temporary
                for file in received
                if not self._place_file(file, files[file.path], report)
            }
            self._records.save()
            self._records.begin_fetch(unplaced)
            self._records.recover_fetch(self._local)

    def _place_file(self, file: ReceivedFile, other: RemoteFile, report: FetchReport) -> bool:
        if file.state.kind == "link" and not stays_inside(file.path, file.state.content):
            report.outside.append(file.path)
            return False
        known = self._records.files.get(file.path, _UNKNOWN)
        name = self._local.place(file, lambda here: here == known.here)
        if name is None:
            report.skipped.append(file.path)
            return False
        self._records.record_arrival(file.path, file.state, other.mode)
        report.written.append(name)
        if name != file.path:
            report.conflicts.append(name)
        return True


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
