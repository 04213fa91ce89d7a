"""Files, directories and links that were changed by hand in an environment.

Each change says what a rebuild has to do for it: which attributes there would be without it, and
why no line can make it, if so.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from danlu.engine.layer_changes import ACCOUNT_FILES, DEVICE, is_volatile
from danlu.engine.layer_reading import (
    has_linked_directory,
    list_parents,
    read_lower,
    read_text,
    walk_layer,
)
from danlu.engine.vscode_servers import MOUNT_TARGET
from danlu.oci.overlay import is_whiteout, read_layer_xattrs
from danlu.sandbox.layer_view import LayerView
from danlu.util.files import have_same_content
from danlu.util.secret_detection import find_secret

#: Larger files are not copied to the project unless the user asks for it.
MAX_FILE_BYTES = 10 << 20
#: Begins the reason for which a file is not copied unless the user asks for it.
PRIVATE = "private"
LARGE = f"larger than {MAX_FILE_BYTES >> 20} MB"

Kind = Literal["added", "changed", "removed"]
FileType = Literal["file", "directory", "link", "hardlink", "pipe", "special"]


class FileAttributes(NamedTuple):
    """The permission bits of an entry, and its owner."""

    mode: int
    uid: int
    gid: int


_USUAL_ATTRIBUTES = FileAttributes(0o644, 0, 0)


@dataclass(frozen=True)
class ChangedFile:
    """A file, directory or link that was ``added``, ``changed`` or ``removed``.

    FileAttributes:
        kind: What happened to it.
        path: Its absolute path.
        size: The bytes of a file.
        type: What it is now.
        has_content: Whether the content of a file is new; otherwise only attributes are.
        target: Where a link leads; for a hard link, the path that it shares a file with.
        replaces: Whether the image has something of another type there.
        attributes: Its mode and owner.
        before: The same without this change; None if it cannot be known.
        xattrs: Extended attributes to set.
        lost_xattrs: Names of those to remove.
        problem: Why no line of a build file makes this change, empty if one does.
    """

    kind: Kind
    path: str
    size: int = 0
    type: FileType = "file"
    has_content: bool = True
    target: str = ""
    replaces: bool = False
    attributes: FileAttributes = _USUAL_ATTRIBUTES
    before: FileAttributes | None = _USUAL_ATTRIBUTES
    xattrs: tuple[tuple[str, bytes], ...] = ()
    lost_xattrs: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_new_directory(self) -> bool:
        """Whether a directory has to be made."""
        return self.type == "directory" and (self.kind == "added" or self.replaces)

    @property
    def has_copy(self) -> bool:
        """Whether the project gets a copy of it."""
        return (
            self.type == "file" and self.kind != "removed" and self.has_content and not self.problem
        )


def find_file_changes(
    upper: Path,
    view: LayerView,
    owned: dict[str, str],
    *,
    included: Sequence[str] = (),
    secrets: Collection[str] = (),
) -> list[ChangedFile]:
    """Return what a layer changes apart from the files of packages, sorted by path.

    ``owned`` are the files of packages with their hashes, empty if unknown: those that differ are
    changes. ``included`` are private files, and directories of such, that are copied nevertheless;
    ``secrets`` are values that make a file private.
    """
    finder = _FileFinder(upper, view, owned, included, secrets)
    for path, entry in walk_layer(upper):
        if not is_volatile(path):
            finder.visit_entry(path, entry)
        elif not is_volatile(os.path.dirname(path)):
            finder.holders |= set(list_parents(path))
    return finder.finish_changes()


@dataclass
class _FileFinder:
    upper: Path
    view: LayerView
    owned: dict[str, str]
    included: Sequence[str]
    secrets: Collection[str]
    changes: dict[str, ChangedFile] = field(default_factory=dict)
    #: The paths of each file with several, those first that a rebuild has without this change.
    links: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    #: New directories that exist in a rebuild, because a package or a copy is in them.
    filled: set[str] = field(default_factory=set)
    #: Directories of what belongs to no build.
    holders: set[str] = field(default_factory=set)
    #: Directories below which new entries do not belong to root's group.
    inheriting: dict[str, bool] = field(default_factory=dict)

    def visit_entry(self, path: str, entry: os.DirEntry[str]) -> None:
        """Record what an entry of the layer changes."""
        status = entry.stat(follow_symlinks=False)
        if is_whiteout(entry.path, status):
            if path not in self.owned or self._has_other_files(path):
                self.changes[path] = ChangedFile("removed", f"/{path}")
            return
        change = self._describe_entry(path, entry, status)
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            self.links.setdefault((status.st_dev, status.st_ino), []).append(path)
        if path in self.owned:
            self._fill_parents(path)
        if change is not None:
            self.changes[path] = change

    def _has_other_files(self, path: str) -> bool:
        """Return whether a directory of the image has entries that belong to no changed package."""
        if path.endswith(".dist-info"):
            return False
        names = self.view.names(tuple(path.split("/")))
        below = (f"{path}/{name}" for name in names if not is_volatile(f"{path}/{name}"))
        return any(entry not in self.owned or self._has_other_files(entry) for entry in below)

    def _fill_parents(self, path: str) -> None:
        self.filled.update(list_parents(path))

    def finish_changes(self) -> list[ChangedFile]:
        """Return the changes, with what could not be known before all entries were seen."""
        self._add_missing_files()
        for paths in self.links.values():
            self._connect_links(sorted(paths))
        others = self.changes.keys() - self.holders
        for path in self.holders.difference(*map(list_parents, others)):
            change = self.changes.get(path)
            if change is not None and change.type == "directory" and change.kind == "added":
                del self.changes[path]
        for path, change in self.changes.items():
            if change.has_copy:
                self._fill_parents(path)
        for path, change in list(self.changes.items()):
            default = change.before == change.attributes and not change.xattrs
            is_new = change.type == "directory" and change.kind == "added"
            if is_new and default and path in self.filled and not change.replaces:
                del self.changes[path]
        return sorted(self.changes.values(), key=lambda change: change.path)

    def _add_missing_files(self) -> None:
        """Add the files of new packages that were removed: the layer has no trace of them."""
        excluded = "usr/share/" if _excludes_paths(self.upper, self.view) else "\0"
        for path, hash in self.owned.items():
            if not hash or path.startswith(excluded) or is_volatile(path):
                continue
            exists = os.path.lexists(self.upper / path)
            if not exists and self.view.entry(tuple(path.split("/"))) is None:
                self.changes[path] = ChangedFile("removed", f"/{path}")

    def _connect_links(self, paths: list[str]) -> None:
        """Turn all but one path of a file into hard links to that one."""
        kept = [path for path in paths if path not in self.changes or path in self.owned]
        leader = (kept or paths)[0]
        problem = ""
        if leader in self.changes:
            # One private name makes the content private.
            problems = (self.changes[path].problem for path in paths if path in self.changes)
            problem = next(filter(None, problems), "")
            self.changes[leader] = replace(self.changes[leader], problem=problem)
        source = self._find_lower(leader)
        for path in paths:
            lower = self._find_lower(path)
            is_linked = lower is not None and source is not None and _is_same_file(lower, source)
            is_packaged = path in self.owned and leader in self.owned
            if path == leader or is_packaged or (is_linked and path not in self.changes):
                continue
            kind: Kind = "added" if lower is None else "changed"
            change = self.changes.get(path, ChangedFile(kind, f"/{path}"))
            self.changes[path] = replace(
                change, type="hardlink", target=f"/{leader}", problem=problem, xattrs=()
            )

    def _find_lower(self, path: str) -> str | None:
        return self.view.entry(tuple(path.split("/")))

    def _describe_entry(
        self, path: str, entry: os.DirEntry[str], status: os.stat_result
    ) -> ChangedFile | None:
        lower = self._find_lower(path)
        below = None if lower is None else os.lstat(lower)
        is_same_type = below is not None and stat.S_IFMT(below.st_mode) == stat.S_IFMT(
            status.st_mode
        )
        change = ChangedFile(
            "added" if below is None else "changed",
            f"/{path}",
            type=_find_type(status.st_mode),
            attributes=_read_attributes(status),
            before=self._expect_attributes(path, status),
            replaces=below is not None and not is_same_type,
        )
        if change.type == "special":
            return replace(change, problem=DEVICE)
        if change.type == "link":
            return self._describe_link(change, path, entry, lower if is_same_type else None, below)
        if change.type == "file":
            change = self._compare_content(change, path, status, lower if is_same_type else None)
        if (
            is_same_type
            and below is not None
            and not (change.type == "file" and change.has_content)
        ):
            change = replace(change, before=_read_attributes(below))
        inherited = lower if is_same_type and not _has_new_content(change) else None
        change = self._compare_xattrs(change, entry.path, inherited)
        return change if self._is_change(change, path, is_same_type) else None

    def _is_change(self, change: ChangedFile, path: str, is_same_type: bool) -> bool:
        is_there = is_same_type or (path in self.owned and not change.replaces)
        return (
            not is_there
            or _has_new_content(change)
            or change.before != change.attributes
            or bool(change.xattrs or change.lost_xattrs)
        )

    def _expect_attributes(self, path: str, status: os.stat_result) -> FileAttributes | None:
        """Return what an entry has that a package or a step creates."""
        if self._has_inheriting_parent(os.path.dirname(path)):
            return None
        mode = status.st_mode
        is_program = stat.S_ISREG(mode) and mode & 0o111
        usual = 0o755 if stat.S_ISDIR(mode) or is_program else 0o644
        return FileAttributes(stat.S_IMODE(mode) if stat.S_ISLNK(mode) else usual, 0, 0)

    def _has_inheriting_parent(self, directory: str) -> bool:
        """Return whether a directory of the image gives its group to new entries."""
        if not directory:
            return False
        known = self.inheriting.get(directory)
        if known is None:
            lower = self._find_lower(directory)
            if lower is None or not stat.S_ISDIR(os.lstat(lower).st_mode):
                known = self._has_inheriting_parent(os.path.dirname(directory))
            else:
                known = bool(os.lstat(lower).st_mode & stat.S_ISGID)
            self.inheriting[directory] = known
        return known

    def _describe_link(
        self,
        change: ChangedFile,
        path: str,
        entry: os.DirEntry[str],
        lower: str | None,
        below: os.stat_result | None,
    ) -> ChangedFile | None:
        target = os.readlink(entry.path)
        if target.startswith(f"{MOUNT_TARGET}/"):
            # A server that `danlu vscode add` keeps: each start makes the link, and its directory.
            self._fill_parents(path)
            return None
        if path in self.owned:
            return None
        if lower is not None and below is not None and os.readlink(lower) == target:
            change = replace(change, before=_read_attributes(below))
            if change.before == change.attributes:
                return None
        return replace(change, target=target)

    def _compare_content(
        self, change: ChangedFile, path: str, status: os.stat_result, lower: str | None
    ) -> ChangedFile:
        """Return a change of a file with its size, and whether its content is new, and private."""
        change = replace(change, size=status.st_size)
        file = self.upper / path
        if path in ACCOUNT_FILES and lower is not None:
            return replace(change, has_content=False)
        if path in self.owned:
            is_same = _has_hash(file, self.owned[path])
        else:
            is_same = lower is not None and have_same_content(file, lower)
        if is_same:
            return replace(change, has_content=False)
        return replace(change, problem=self._find_problem(change, file))

    def _find_problem(self, change: ChangedFile, file: Path) -> str:
        if any("\ud800" <= char <= "\udfff" for char in change.path):
            return "its name is not UTF-8"
        parts = change.path.split("/")
        if ".git" in parts:
            return "part of a git repository, which no other repository can contain"
        if change.path.lstrip("/") in ACCOUNT_FILES:
            return "account files are not copied"
        if any(_is_below(change.path, place) for place in self.included):
            return ""
        if change.size > MAX_FILE_BYTES:
            return LARGE
        mode = change.attributes.mode
        if not mode & stat.S_IROTH:
            return f"{PRIVATE}: others may not read it (mode {mode & 0o777:o})"
        found = find_secret(change.path, read_text(file) or "", self.secrets)
        return f"{PRIVATE}: {found}" if found else ""

    def _compare_xattrs(self, change: ChangedFile, path: str, lower: str | None) -> ChangedFile:
        now = read_layer_xattrs(path)
        below = {} if lower is None else read_layer_xattrs(lower)
        changed = sorted(item for item in now.items() if below.get(item[0]) != item[1])
        lost = tuple(sorted(below.keys() - now.keys()))
        return replace(change, xattrs=tuple(changed), lost_xattrs=lost)


def _excludes_paths(upper: Path, view: LayerView) -> bool:
    """Return whether dpkg is configured not to unpack some files, such as those for people."""
    directory = "etc/dpkg/dpkg.cfg.d"
    names = view.names(tuple(directory.split("/")))
    if (upper / directory).is_dir() and not has_linked_directory(upper, directory):
        names |= set(os.listdir(upper / directory))
    paths = ("etc/dpkg/dpkg.cfg", *(f"{directory}/{name}" for name in names))
    texts = ((read_text(upper / path) or "") + read_lower(view, path) for path in paths)
    return any("path-exclude" in text for text in texts)


def _has_new_content(change: ChangedFile) -> bool:
    """Return whether a copy takes the place of the file, so that nothing of the old one is left."""
    return change.type == "file" and change.has_content


def _find_type(mode: int) -> FileType:
    types: dict[int, FileType] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "pipe",
    }
    return types.get(stat.S_IFMT(mode), "special")


def _read_attributes(status: os.stat_result) -> FileAttributes:
    return FileAttributes(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _is_below(path: str, place: str) -> bool:
    directory = place.rstrip("/")
    return path == directory or path.startswith(f"{directory}/")


def _is_same_file(path: str, other: str) -> bool:
    # Links of the image are not followed: they could lead out of it.
    return os.path.samestat(os.lstat(path), os.lstat(other))


def _has_hash(file: Path, expected: str) -> bool:
    """Return whether a file has a hash as in RECORD or, in hexadecimal digits, dpkg's."""
    name, _, digest = expected.partition("=")
    if name not in ("md5", "sha256"):
        return True
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, name).digest()
    encoded = base64.urlsafe_b64encode(found).decode().rstrip("=")
    return digest in (found.hex(), encoded)
