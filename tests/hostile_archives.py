"""Hostile archives, described once and rendered as tar, wheel, directory and git repository.

Each consumer of untrusted files (``tests/*/test_hostile*.py``) has its own table of what must
happen to each case; a case without an expectation fails its test. Renderers raise
:class:`UnsupportedEntryError` for entries that a format cannot have (a directory has no ``..``).
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = [
    "CASES",
    "SECRET",
    "ArchiveEntry",
    "HostileArchive",
    "UnsupportedEntryError",
    "find_case",
]

Kind = Literal["file", "dir", "link", "hard", "char", "block", "fifo"]
#: In every file outside that a case tries to reach.
SECRET = b"the host's secret"
#: What `ExtractionDirectory` has next to the directory that is unpacked into; cases name it.
OUTSIDE = b"../outside"


class UnsupportedEntryError(Exception):
    """The format cannot represent this entry."""


@dataclass(frozen=True)
class ArchiveEntry:
    """One entry; ``content`` is a file's content or a link's target."""

    kind: Kind
    name: bytes
    content: bytes = b""
    mode: int = 0o644
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    #: The size that the header states, if it lies.
    stated: int | None = None
    owner: int = 0


@dataclass(frozen=True)
class HostileArchive:
    """Entries in their order; ``cut`` drops that many bytes from the end of the archive."""

    name: str
    items: tuple[ArchiveEntry, ...]
    cut: int = 0

    def __str__(self) -> str:
        return self.name


def _file_entry(name: bytes, content: bytes = b"hostile", **rest: object) -> ArchiveEntry:
    return ArchiveEntry("file", name, content, **rest)  # type: ignore[arg-type]


def _link_entry(name: bytes, target: bytes) -> ArchiveEntry:
    return ArchiveEntry("link", name, target, 0o777)


CASES: tuple[HostileArchive, ...] = (
    # names
    HostileArchive("parent", (_file_entry(b".."),)),
    HostileArchive("parent-of-directory", (_file_entry(b"a/.."),)),
    HostileArchive("parent-as-directory", (ArchiveEntry("dir", b"..", mode=0o777),)),
    HostileArchive("through-parent", (_file_entry(b"../outside/secret"),)),
    HostileArchive("through-parent-below", (_file_entry(b"a/../../outside/secret"),)),
    HostileArchive("parent-that-stays-inside", (_file_entry(b"a/../b"),)),
    HostileArchive("absolute", (_file_entry(b"/outside/secret"),)),
    HostileArchive("doubly-absolute", (_file_entry(b"//outside/secret"),)),
    HostileArchive("empty", (_file_entry(b""),)),
    HostileArchive("dot", (_file_entry(b"."),)),
    HostileArchive("nul", (_file_entry(b"a\0b"),)),
    HostileArchive("control-characters", (_file_entry(b"a\x1b[2Jb\r\nerror: c"),)),
    HostileArchive("not-utf8", (_file_entry(b"a\xff\xfeb"),)),
    HostileArchive("backslashes", (_file_entry(b"..\\..\\outside\\secret"),)),
    HostileArchive("drive", (_file_entry(b"C:\\outside"),)),
    HostileArchive("long-name", (_file_entry(b"n" * 300),)),
    HostileArchive("long-path", (_file_entry(b"/".join([b"d" * 200] * 25)),)),
    HostileArchive("deep-path", (_file_entry(b"d/" * 450 + b"f"),)),
    HostileArchive("case-collision", (_file_entry(b"Readme", b"1"), _file_entry(b"README", b"2"))),
    HostileArchive("trailing-slash-on-file", (_file_entry(b"a/"),)),
    # links
    HostileArchive("link-out", (_link_entry(b"l", OUTSIDE), _file_entry(b"l/secret"))),
    HostileArchive("absolute-link-out", (_link_entry(b"l", b"/outside"), _file_entry(b"l/secret"))),
    HostileArchive(
        "link-to-file-out", (_link_entry(b"l", b"../outside/secret"), _file_entry(b"l"))
    ),
    HostileArchive("link-out-alone", (_link_entry(b"l", b"../outside/secret"),)),
    HostileArchive(
        "link-chain-out",
        (_link_entry(b"a", b"."), _link_entry(b"a/b", OUTSIDE), _file_entry(b"b/secret")),
    ),
    HostileArchive(
        "link-loop", (_link_entry(b"a", b"b"), _link_entry(b"b", b"a"), _file_entry(b"a/x"))
    ),
    HostileArchive("link-to-itself", (_link_entry(b"a", b"a"), _file_entry(b"a/x"))),
    HostileArchive(
        "link-replaced-by-directory",
        (
            _link_entry(b"l", OUTSIDE),
            ArchiveEntry("dir", b"l", mode=0o755),
            _file_entry(b"l/secret"),
        ),
    ),
    HostileArchive(
        "directory-replaced-by-link",
        (
            ArchiveEntry("dir", b"d", mode=0o755),
            _link_entry(b"d", OUTSIDE),
            _file_entry(b"d/secret"),
        ),
    ),
    HostileArchive(
        "file-replaced-by-link",
        (_file_entry(b"f"), _link_entry(b"f", b"../outside/secret"), _file_entry(b"f")),
    ),
    HostileArchive(
        "hard-link-out", (ArchiveEntry("hard", b"h", b"../outside/secret"), _file_entry(b"h"))
    ),
    HostileArchive("absolute-hard-link", (ArchiveEntry("hard", b"h", b"/outside/secret"),)),
    HostileArchive(
        "hard-link-through-link",
        (_link_entry(b"l", OUTSIDE), ArchiveEntry("hard", b"h", b"l/secret")),
    ),
    HostileArchive(
        "hard-link-to-link",
        (
            _link_entry(b"l", b"../outside/secret"),
            ArchiveEntry("hard", b"h", b"l"),
            _file_entry(b"h"),
        ),
    ),
    HostileArchive("hard-link-to-missing", (ArchiveEntry("hard", b"h", b"missing"),)),
    HostileArchive("hard-link-to-itself", (ArchiveEntry("hard", b"h", b"h"),)),
    HostileArchive(
        "hard-link-to-directory",
        (ArchiveEntry("dir", b"d", mode=0o755), ArchiveEntry("hard", b"h", b"d")),
    ),
    # kinds
    HostileArchive("character-device", (ArchiveEntry("char", b"null"),)),
    HostileArchive("block-device", (ArchiveEntry("block", b"sda"),)),
    HostileArchive("fifo", (ArchiveEntry("fifo", b"pipe"),)),
    HostileArchive("setuid", (_file_entry(b"su", mode=0o6755),)),
    HostileArchive("unreadable", (_file_entry(b"f", mode=0),)),
    # bytes
    HostileArchive("duplicate", (_file_entry(b"f", b"first"), _file_entry(b"f", b"second"))),
    HostileArchive("file-below-file", (_file_entry(b"f"), _file_entry(b"f/x"))),
    HostileArchive("claims-huge-size", (_file_entry(b"f", stated=1 << 50),)),
    HostileArchive("claims-negative-size", (_file_entry(b"f", stated=-1),)),
    HostileArchive("truncated", (_file_entry(b"f", b"x" * 4000),), cut=3500),
    HostileArchive("bomb", (_file_entry(b"zeros", bytes(64 << 20)),)),
    HostileArchive(
        "overlay-xattr", (_file_entry(b"f", xattrs={"trusted.overlay.redirect": b"/etc"}),)
    ),
    HostileArchive(
        "user-overlay-xattr", (_file_entry(b"f", xattrs={"user.overlay.opaque": b"y"}),)
    ),
    HostileArchive("capability-xattr", (_file_entry(b"f", xattrs={"security.capability": b"\1"}),)),
    # what only overlayfs gives a meaning
    HostileArchive("whiteout", (_file_entry(b".wh.gone", b""),)),
    HostileArchive("whiteout-of-parent", (_file_entry(b".wh..", b""),)),
    HostileArchive("opaque-marker", (_file_entry(b"d/.wh..wh..opq", b""),)),
)


def find_case(name: str) -> HostileArchive:
    """The case of that name."""
    (result,) = [case for case in CASES if case.name == name]
    return result


class ExtractionDirectory:
    """``root`` to unpack into, and ``outside`` with secrets that cases try to read or change."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir(parents=True)
        self.outside = place / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        self._before = self._describe_outside()

    def _describe_outside(self) -> dict[str, tuple[int, int, bytes]]:
        results = {}
        for directory, names, files in os.walk(self.place):
            if Path(directory) == self.place:
                names.remove("root")
            for name in [*names, *files]:
                path = Path(directory, name)
                status = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
                results[str(path.relative_to(self.place))] = (
                    status.st_mode,
                    status.st_nlink,
                    content,
                )
        results["."] = self.place.stat().st_mode, 0, b""
        return results

    def check_outside_is_intact(self) -> None:
        """Assert that nothing outside ``root`` was created, changed, removed or linked."""
        assert self._describe_outside() == self._before

    def check_no_secret(self) -> None:
        """Assert that no regular file below ``root`` holds the secret."""
        for path in self.root.rglob("*"):
            if stat.S_ISREG(path.lstat().st_mode):
                assert SECRET not in path.read_bytes(), path


# --- tar


_FLAGS: Mapping[Kind, bytes] = {
    "file": b"0",
    "hard": b"1",
    "link": b"2",
    "char": b"3",
    "block": b"4",
    "dir": b"5",
    "fifo": b"6",
}


def tar_of(case: HostileArchive) -> bytes:
    """An uncompressed pax archive; long names and xattrs are pax records."""
    stream = io.BytesIO()
    for item in case.items:
        records: dict[bytes, bytes] = {
            b"SCHILY.xattr." + name.encode(): value for name, value in item.xattrs.items()
        }
        if len(item.name) > 100 or b"\0" in item.name or not item.name:
            records[b"path"] = item.name
        if item.kind != "file" and len(item.content) > 100:
            records[b"linkpath"] = item.content
        if records:
            _write_entry(stream, b"x", b"pax", _pax_header(records))
        content = item.content if item.kind == "file" else b""
        target = b"" if item.kind == "file" else item.content
        _write_entry(stream, _FLAGS[item.kind], item.name[:100], content, item, target[:100])
    stream.write(bytes(1024))
    whole = stream.getvalue()
    return whole[: len(whole) - case.cut]


def _pax_header(records: Mapping[bytes, bytes]) -> bytes:
    data = b""
    for key, value in records.items():
        body = b" " + key + b"=" + value + b"\n"
        length = len(body)
        while length != len(body) + len(str(length)):
            length = len(body) + len(str(length))
        data += str(length).encode() + body
    return data


def _write_entry(
    stream: io.BytesIO,
    flag: bytes,
    name: bytes,
    content: bytes,
    item: ArchiveEntry | None = None,
    target: bytes = b"",
) -> None:
    item = item or ArchiveEntry("file", name)
    size = len(content) if item.stated is None else item.stated
    number = b"%011o\0" % size if 0 <= size < 8**11 else _encode_base256(size)
    block = bytearray(512)
    owner = b"%07o" % item.owner
    struct.pack_into("100s8s8s8s", block, 0, name, b"%07o" % item.mode, owner, owner)
    struct.pack_into("12s12s8sc100s", block, 124, number, b"%011o" % 0, b" " * 8, flag, target)
    struct.pack_into("8s", block, 257, b"ustar\00000")
    struct.pack_into("8s", block, 148, b"%06o\0 " % sum(block))
    stream.write(bytes(block) + content + bytes(-len(content) % 512))


def _encode_base256(size: int) -> bytes:
    data = bytearray(size.to_bytes(12, "big", signed=True))
    data[0] |= 0x80
    return bytes(data)


# --- wheels


def wheel_of(case: HostileArchive, directory: Path, *, record: bool = True) -> Path:
    """Write a wheel with the case's entries in addition to a package.

    With ``record`` its RECORD lists them all with correct hashes, so that only their names and
    kinds can be the reason to reject it; without, they are not in RECORD.
    """
    path = directory / "hostile-1.0-py3-none-any.whl"
    plain: dict[bytes, bytes] = {
        b"hostile/__init__.py": b"",
        b"hostile-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n",
        b"hostile-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    items = [*(_file_entry(name, data) for name, data in plain.items()), *case.items]
    lines = []
    for item in items:
        if not record and item in case.items:
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(item.content).digest()).rstrip(b"=")
        output = item.name.decode("utf-8", "surrogateescape").replace('"', '""')
        quoted = f'"{output}"' if any(sign in output for sign in ',"\r\n') else output
        lines.append(f"{quoted},sha256={digest.decode()},{len(item.content)}\n")
    lines.append("hostile-1.0.dist-info/RECORD,,\n")
    text = "".join(lines).encode("utf-8", "surrogateescape")
    _write_zip(path, [*items, _file_entry(b"hostile-1.0.dist-info/RECORD", text)], case.cut)
    return path


_ZIP_KINDS: Mapping[Kind, int] = {
    "file": stat.S_IFREG,
    "link": stat.S_IFLNK,
    "dir": stat.S_IFDIR,
    "fifo": stat.S_IFIFO,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
}


def _write_zip(path: Path, items: Sequence[ArchiveEntry], cut: int) -> None:
    """A zip written by hand: `zipfile` mends names as it writes them."""
    body, directory = b"", b""
    for item in items:
        if item.kind not in _ZIP_KINDS:
            raise UnsupportedEntryError(f"a zip has no {item.kind}")
        if item.xattrs:
            raise UnsupportedEntryError("a zip has no extended attributes")
        name = item.name + (b"/" if item.kind == "dir" else b"")
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        data = packer.compress(item.content) + packer.flush()
        size = len(item.content) if item.stated is None else item.stated & 0xFFFFFFFE
        common = struct.pack(
            "<HHHHHIIIHH",
            20, 0x800, 8, 0, 33, zlib.crc32(item.content), len(data), size, len(name), 0,
        )  # fmt: skip
        mode = (_ZIP_KINDS[item.kind] | item.mode) << 16
        directory += b"PK\1\2" + struct.pack("<H", 0x314) + common
        directory += struct.pack("<HHHII", 0, 0, 0, mode, len(body)) + name
        body += b"PK\3\4" + common + name + data
    end = struct.pack("<HHHHIIH", 0, 0, len(items), len(items), len(directory), len(body), 0)
    whole = body + directory + b"PK\5\6" + end
    path.write_bytes(whole[: len(whole) - cut] if cut else whole)


def is_readable_zip(path: Path) -> bool:
    """Return whether Python's zipfile can read the wheel: a check of `_write_zip`."""
    with zipfile.ZipFile(path) as file:
        return file.testzip() is None


# --- directories (a project that was cloned)


def make_tree(case: HostileArchive, root: Path) -> None:
    """The case as real files below ``root``."""
    for item in case.items:
        _check_as_path(item)
        path = root / os.fsdecode(item.name)
        above = path.parent
        try:
            if os.path.lexists(path):
                raise UnsupportedEntryError("a directory has each name once")
            ways = [parent for parent in (above, *above.parents) if root in parent.parents]
            if any(way.is_symlink() for way in ways):
                raise UnsupportedEntryError("the way leads through a link")
            above.mkdir(parents=True, exist_ok=True)
            _make_item(path, item, root)
        except OSError as error:
            raise UnsupportedEntryError(str(error)) from error


def _check_as_path(item: ArchiveEntry) -> None:
    parts = item.name.split(b"/")
    if b"" in parts or b"." in parts or b".." in parts or b"\0" in item.name:
        raise UnsupportedEntryError("no file system has such a name")
    if item.stated is not None:
        raise UnsupportedEntryError("a file has the size that it has")


def _make_item(path: Path, item: ArchiveEntry, root: Path) -> None:
    if item.kind == "file":
        path.write_bytes(item.content)
        path.chmod(item.mode)
    elif item.kind == "dir":
        path.mkdir()
    elif item.kind == "link":
        os.symlink(item.content, path)
    elif item.kind == "fifo":
        os.mkfifo(path)
    elif item.kind == "hard":
        os.link(root / os.fsdecode(item.content), path, follow_symlinks=False)
    else:
        raise UnsupportedEntryError("devices need root, and no clone makes them")
    for name, value in item.xattrs.items():
        os.setxattr(path, name, value)


# --- git


def git_commit_of(case: HostileArchive, repository: Path) -> str:
    """A commit with the case's entries in the bare ``repository``, names as hostile as asked for.

    Trees are written as raw objects: `git update-index` would refuse most of these names.
    """
    if case.cut or any(item.stated is not None for item in case.items):
        raise UnsupportedEntryError("git objects are checked by their hash")
    tree: dict[bytes, object] = {}
    for item in case.items:
        if item.kind not in ("file", "link"):
            raise UnsupportedEntryError(f"git keeps no {item.kind}")
        if item.xattrs:
            raise UnsupportedEntryError("git keeps no extended attributes")
        if b"\0" in item.name:
            raise UnsupportedEntryError("a tree entry ends at NUL")
        mode = b"120000" if item.kind == "link" else b"100755" if item.mode & 0o100 else b"100644"
        *above, name = item.name.split(b"/")
        directory = tree
        for part in above:
            below = directory.setdefault(part, {})
            if not isinstance(below, dict):
                raise UnsupportedEntryError("a tree has each name once")
            directory = below
        if name in directory:
            raise UnsupportedEntryError("a tree has each name once")
        directory[name] = (mode, _git_object(repository, "blob", item.content))
    identity = _git_tree(repository, tree)
    text = f"tree {identity}\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\nx\n"
    commit = _git_object(repository, "commit", text.encode())
    _run_git(repository, "update-ref", "refs/heads/main", commit)
    return commit


def _git_tree(repository: Path, tree: Mapping[bytes, object]) -> str:
    data = b""
    for name, value in sorted(tree.items()):
        if isinstance(value, dict):
            mode, identity = b"40000", _git_tree(repository, value)
        else:
            mode, identity = value  # type: ignore[misc]
        data += mode + b" " + name + b"\0" + bytes.fromhex(identity)
    return _git_object(repository, "tree", data)


def _git_object(repository: Path, kind: str, data: bytes) -> str:
    command = ["hash-object", "-t", kind, "-w", "--stdin", "--literally"]
    return _run_git(repository, *command, data=data)


def _run_git(repository: Path, *arguments: str, data: bytes = b"") -> str:
    result = subprocess.run(
        ["git", "--git-dir", str(repository), *arguments],
        input=data,
        capture_output=True,
        check=True,
    )
    return result.stdout.decode().strip()
