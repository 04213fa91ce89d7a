"""Hostile archives, described once and rendered as tar, wheel, directory and git repository.

Each consumer of untrusted files (``tests/*/test_hostile*.py``) has its own table of what must
happen to each case; a case without an expectation fails its test. Renderers raise
:class:`Inexpressible` if a format cannot say something (a directory has no entry named ``..``).
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

__all__ = ["CASES", "SECRET", "Case", "Inexpressible", "Item", "named"]

Kind = Literal["file", "dir", "link", "hard", "char", "block", "fifo"]
#: In every file outside that a case tries to reach.
SECRET = b"the host's secret"
#: What `Sandpit` has next to the place that is unpacked into; cases name it.
OUTSIDE = b"../outside"


class Inexpressible(Exception):
    """The format has no way to say this."""


@dataclass(frozen=True)
class Item:
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
class Case:
    """Entries in their order; ``cut`` drops that many bytes from the end of the archive."""

    name: str
    items: tuple[Item, ...]
    cut: int = 0

    def __str__(self) -> str:
        return self.name


def _file(name: bytes, content: bytes = b"hostile", **rest: object) -> Item:
    return Item("file", name, content, **rest)  # type: ignore[arg-type]


def _link(name: bytes, target: bytes) -> Item:
    return Item("link", name, target, 0o777)


CASES: tuple[Case, ...] = (
    # names
    Case("parent", (_file(b".."),)),
    Case("parent-of-directory", (_file(b"a/.."),)),
    Case("parent-as-directory", (Item("dir", b"..", mode=0o777),)),
    Case("through-parent", (_file(b"../outside/secret"),)),
    Case("through-parent-below", (_file(b"a/../../outside/secret"),)),
    Case("parent-that-stays-inside", (_file(b"a/../b"),)),
    Case("absolute", (_file(b"/outside/secret"),)),
    Case("doubly-absolute", (_file(b"//outside/secret"),)),
    Case("empty", (_file(b""),)),
    Case("dot", (_file(b"."),)),
    Case("nul", (_file(b"a\0b"),)),
    Case("control-characters", (_file(b"a\x1b[2Jb\r\nerror: c"),)),
    Case("not-utf8", (_file(b"a\xff\xfeb"),)),
    Case("backslashes", (_file(b"..\\..\\outside\\secret"),)),
    Case("drive", (_file(b"C:\\outside"),)),
    Case("long-name", (_file(b"n" * 300),)),
    Case("long-path", (_file(b"/".join([b"d" * 200] * 25)),)),
    Case("deep-path", (_file(b"d/" * 450 + b"f"),)),
    Case("case-collision", (_file(b"Readme", b"1"), _file(b"README", b"2"))),
    Case("trailing-slash-on-file", (_file(b"a/"),)),
    # links
    Case("link-out", (_link(b"l", OUTSIDE), _file(b"l/secret"))),
    Case("absolute-link-out", (_link(b"l", b"/outside"), _file(b"l/secret"))),
    Case("link-to-file-out", (_link(b"l", b"../outside/secret"), _file(b"l"))),
    Case("link-out-alone", (_link(b"l", b"../outside/secret"),)),
    Case("link-chain-out", (_link(b"a", b"."), _link(b"a/b", OUTSIDE), _file(b"b/secret"))),
    Case("link-loop", (_link(b"a", b"b"), _link(b"b", b"a"), _file(b"a/x"))),
    Case("link-to-itself", (_link(b"a", b"a"), _file(b"a/x"))),
    Case(
        "link-replaced-by-directory",
        (_link(b"l", OUTSIDE), Item("dir", b"l", mode=0o755), _file(b"l/secret")),
    ),
    Case(
        "directory-replaced-by-link",
        (Item("dir", b"d", mode=0o755), _link(b"d", OUTSIDE), _file(b"d/secret")),
    ),
    Case("file-replaced-by-link", (_file(b"f"), _link(b"f", b"../outside/secret"), _file(b"f"))),
    Case("hard-link-out", (Item("hard", b"h", b"../outside/secret"), _file(b"h"))),
    Case("absolute-hard-link", (Item("hard", b"h", b"/outside/secret"),)),
    Case("hard-link-through-link", (_link(b"l", OUTSIDE), Item("hard", b"h", b"l/secret"))),
    Case(
        "hard-link-to-link",
        (_link(b"l", b"../outside/secret"), Item("hard", b"h", b"l"), _file(b"h")),
    ),
    Case("hard-link-to-missing", (Item("hard", b"h", b"missing"),)),
    Case("hard-link-to-itself", (Item("hard", b"h", b"h"),)),
    Case("hard-link-to-directory", (Item("dir", b"d", mode=0o755), Item("hard", b"h", b"d"))),
    # kinds
    Case("character-device", (Item("char", b"null"),)),
    Case("block-device", (Item("block", b"sda"),)),
    Case("fifo", (Item("fifo", b"pipe"),)),
    Case("setuid", (_file(b"su", mode=0o6755),)),
    Case("unreadable", (_file(b"f", mode=0),)),
    # bytes
    Case("duplicate", (_file(b"f", b"first"), _file(b"f", b"second"))),
    Case("file-below-file", (_file(b"f"), _file(b"f/x"))),
    Case("claims-huge-size", (_file(b"f", stated=1 << 50),)),
    Case("claims-negative-size", (_file(b"f", stated=-1),)),
    Case("truncated", (_file(b"f", b"x" * 4000),), cut=3500),
    Case("bomb", (_file(b"zeros", bytes(64 << 20)),)),
    Case("overlay-xattr", (_file(b"f", xattrs={"trusted.overlay.redirect": b"/etc"}),)),
    Case("user-overlay-xattr", (_file(b"f", xattrs={"user.overlay.opaque": b"y"}),)),
    Case("capability-xattr", (_file(b"f", xattrs={"security.capability": b"\1"}),)),
    # what only overlayfs gives a meaning
    Case("whiteout", (_file(b".wh.gone", b""),)),
    Case("whiteout-of-parent", (_file(b".wh..", b""),)),
    Case("opaque-marker", (_file(b"d/.wh..wh..opq", b""),)),
)


def named(name: str) -> Case:
    """The case of that name."""
    (found,) = [case for case in CASES if case.name == name]
    return found


class Sandpit:
    """``root`` to unpack into, and ``outside`` with secrets that cases try to read or change."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir(parents=True)
        self.outside = place / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        self._before = self._describe()

    def _describe(self) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for directory, names, files in os.walk(self.place):
            if Path(directory) == self.place:
                names.remove("root")
            for name in [*names, *files]:
                path = Path(directory, name)
                status = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
                found[str(path.relative_to(self.place))] = status.st_mode, status.st_nlink, content
        found["."] = self.place.stat().st_mode, 0, b""
        return found

    def check_untouched(self) -> None:
        """Assert that nothing next to ``root`` was made, changed, removed or linked."""
        assert self._describe() == self._before

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


def tar_of(case: Case) -> bytes:
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
            _write_entry(stream, b"x", b"pax", _pax(records))
        content = item.content if item.kind == "file" else b""
        target = b"" if item.kind == "file" else item.content
        _write_entry(stream, _FLAGS[item.kind], item.name[:100], content, item, target[:100])
    stream.write(bytes(1024))
    whole = stream.getvalue()
    return whole[: len(whole) - case.cut]


def _pax(records: Mapping[bytes, bytes]) -> bytes:
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
    item: Item | None = None,
    target: bytes = b"",
) -> None:
    item = item or Item("file", name)
    size = len(content) if item.stated is None else item.stated
    number = b"%011o\0" % size if 0 <= size < 8**11 else _base256(size)
    block = bytearray(512)
    owner = b"%07o" % item.owner
    struct.pack_into("100s8s8s8s", block, 0, name, b"%07o" % item.mode, owner, owner)
    struct.pack_into("12s12s8sc100s", block, 124, number, b"%011o" % 0, b" " * 8, flag, target)
    struct.pack_into("8s", block, 257, b"ustar\00000")
    struct.pack_into("8s", block, 148, b"%06o\0 " % sum(block))
    stream.write(bytes(block) + content + bytes(-len(content) % 512))


def _base256(size: int) -> bytes:
    data = bytearray(size.to_bytes(12, "big", signed=True))
    data[0] |= 0x80
    return bytes(data)


# --- wheels


def wheel_of(case: Case, directory: Path, *, record: bool = True) -> Path:
    """A wheel with the case's entries beside a package of its own.

    With ``record`` its RECORD lists them all with correct hashes, so that only what the names and
    kinds are can be the reason to refuse it; without, RECORD does not know them.
    """
    path = directory / "hostile-1.0-py3-none-any.whl"
    plain: dict[bytes, bytes] = {
        b"hostile/__init__.py": b"",
        b"hostile-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n",
        b"hostile-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    items = [*(_file(name, data) for name, data in plain.items()), *case.items]
    lines = []
    for item in items:
        if not record and item in case.items:
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(item.content).digest()).rstrip(b"=")
        shown = item.name.decode("utf-8", "surrogateescape").replace('"', '""')
        quoted = f'"{shown}"' if any(sign in shown for sign in ',"\r\n') else shown
        lines.append(f"{quoted},sha256={digest.decode()},{len(item.content)}\n")
    lines.append("hostile-1.0.dist-info/RECORD,,\n")
    text = "".join(lines).encode("utf-8", "surrogateescape")
    _write_zip(path, [*items, _file(b"hostile-1.0.dist-info/RECORD", text)], case.cut)
    return path


_ZIP_KINDS: Mapping[Kind, int] = {
    "file": stat.S_IFREG,
    "link": stat.S_IFLNK,
    "dir": stat.S_IFDIR,
    "fifo": stat.S_IFIFO,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
}


def _write_zip(path: Path, items: Sequence[Item], cut: int) -> None:
    """A zip written by hand: `zipfile` mends names as it writes them."""
    body, directory = b"", b""
    for item in items:
        if item.kind not in _ZIP_KINDS:
            raise Inexpressible(f"a zip has no {item.kind}")
        if item.xattrs:
            raise Inexpressible("a zip has no extended attributes")
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
    """Whether the wheel is one for Python's own reader: a check of `_write_zip`."""
    with zipfile.ZipFile(path) as file:
        return file.testzip() is None


# --- directories (a project that was cloned)


def make_tree(case: Case, root: Path) -> None:
    """The case as real files below ``root``."""
    for item in case.items:
        _check_as_path(item)
        path = root / os.fsdecode(item.name)
        above = path.parent
        try:
            if os.path.lexists(path):
                raise Inexpressible("a directory has each name once")
            ways = [parent for parent in (above, *above.parents) if root in parent.parents]
            if any(way.is_symlink() for way in ways):
                raise Inexpressible("the way leads through a link")
            above.mkdir(parents=True, exist_ok=True)
            _make_item(path, item, root)
        except OSError as error:
            raise Inexpressible(str(error)) from error


def _check_as_path(item: Item) -> None:
    parts = item.name.split(b"/")
    if b"" in parts or b"." in parts or b".." in parts or b"\0" in item.name:
        raise Inexpressible("no file system has such a name")
    if item.stated is not None:
        raise Inexpressible("a file has the size that it has")


def _make_item(path: Path, item: Item, root: Path) -> None:
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
        raise Inexpressible("devices need root, and no clone makes them")
    for name, value in item.xattrs.items():
        os.setxattr(path, name, value)


# --- git


def git_commit_of(case: Case, repository: Path) -> str:
    """A commit with the case's entries in the bare ``repository``, names as hostile as asked for.

    Trees are written as raw objects: `git update-index` would refuse most of these names.
    """
    if case.cut or any(item.stated is not None for item in case.items):
        raise Inexpressible("git objects are checked by their hash")
    tree: dict[bytes, object] = {}
    for item in case.items:
        if item.kind not in ("file", "link"):
            raise Inexpressible(f"git keeps no {item.kind}")
        if item.xattrs:
            raise Inexpressible("git keeps no extended attributes")
        if b"\0" in item.name:
            raise Inexpressible("a tree entry ends at NUL")
        mode = b"120000" if item.kind == "link" else b"100755" if item.mode & 0o100 else b"100644"
        *above, name = item.name.split(b"/")
        place = tree
        for part in above:
            below = place.setdefault(part, {})
            if not isinstance(below, dict):
                raise Inexpressible("a tree has each name once")
            place = below
        if name in place:
            raise Inexpressible("a tree has each name once")
        place[name] = (mode, _git_object(repository, "blob", item.content))
    identity = _git_tree(repository, tree)
    text = f"tree {identity}\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\nx\n"
    commit = _git_object(repository, "commit", text.encode())
    _git(repository, "update-ref", "refs/heads/main", commit)
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
    return _git(repository, *command, data=data)


def _git(repository: Path, *arguments: str, data: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "--git-dir", str(repository), *arguments],
        input=data,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()
