"""The other side's files: what is there, their contents, and changes to them."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import shlex
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import BinaryIO, Literal

import msgspec

from danlu.errors import OutsideError
from danlu.project_sync.scripts import (
    APPLY_SCRIPT,
    CONTENT_FUNCTIONS,
    EVAL_SCRIPT,
    LIST_SCRIPT,
)
from danlu.project_sync.types import CopyPlace, FileState, ScriptRunner, is_private_name
from danlu.util.sanitize import escape_unprintable

_LISTED_FILE = re.compile(rb"(([0-9a-f]+) (\d+) -?\d+ (-?\d+) \d+) (\.|\./.+)")
_VOLUME = re.compile("[0-9a-f]{32}")
_DIGEST = re.compile(rb"(\\?)([0-9a-f]{64})  \./(.+)")
_INDEXED = re.compile(rb"(\d{1,9}) (.+)")
_ESCAPES = {b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}
_UNREADABLE = "unreadable"
_MAX_OUTPUT = 256 << 20
_MAX_NAMES = 200
_MAX_SCRIPT_NAMES = 5000
#: Seconds. A file that was changed this shortly before it was listed may change again without
#: another time, as in git's index ("racy git").
_RACY_SECONDS = 2


class RemoteFile(msgspec.Struct, frozen=True, gc=False):
    """A file as the other side lists it; ``stat`` changes whenever its content does.

    ``hint`` is the same unless the file may change again without another ``stat``.
    """

    kind: Literal["file", "directory", "link"]
    mode: int
    size: int
    stat: str
    hint: str


def render_change(
    function: str, first: Mapping[str, str], paths: Iterable[str], *, required: bool = True
) -> str:
    """Return lines of a plan that call a function of ``APPLY_SCRIPT`` for all paths.

    Its first argument are lines, of which ``first`` has one for each path. Unless ``required``, a
    directory that does not exist is not a failure.
    """
    lines = []
    for directory, found in groupby(paths, posixpath.dirname):
        names = list(found)
        for start in range(0, len(names), _MAX_NAMES):
            part = names[start : start + _MAX_NAMES]
            words = ["\n".join(first[path] for path in part)]
            words += [f"./{posixpath.basename(path)}" for path in part]
            enter = f"at {shlex.quote(directory)}"
            call = f"{function} {shlex.join(words)} || failed=1"
            lines.append(
                f"{enter} && {call}\n" if required else f"if {enter} 2>/dev/null; then {call}; fi\n"
            )
    return "".join(lines)


class RemoteFiles:
    """A copy on the other side. All methods raise :class:`~danlu.errors.DanluError`."""

    def __init__(self, runner: ScriptRunner, place: CopyPlace) -> None:
        self._runner = runner
        self._place = place

    def list_files(self) -> tuple[str, dict[str, RemoteFile]]:
        """Return the volume and what is in the copy, which is created if nobody else does."""
        place = self._place
        output = self._run_script(
            LIST_SCRIPT, place.directory, place.stage, place.volume_file, secrets.token_hex(16)
        )
        lines = output.split(b"\n")
        volume = place.volume
        if place.volume_file:
            volume = lines.pop(0).decode("ascii", "replace").removeprefix("volume ")
            if not _VOLUME.fullmatch(volume):
                raise self._invalid_answer("no volume")
        now = lines.pop(0).decode("ascii", "replace").removeprefix("now ")
        if not now.isdecimal() or lines[-2:] != [b"end", b""]:
            raise self._invalid_answer("an incomplete list")
        files = {}
        for match, name in _join_lines(lines[:-2]):
            found = _parse_file(match, newest=int(now) - _RACY_SECONDS)
            parts = name.split("/")
            if any(part in ("", ".", "..") for part in parts):
                raise self._invalid_answer(f"the path {escape_unprintable(name)}")
            if found is not None and not any(map(is_private_name, parts)):
                files[name] = found
        return volume, files

    def read_states(self, files: Mapping[str, RemoteFile]) -> dict[str, FileState]:
        """Return what files are; the content of those that cannot be read is unknown."""
        contents: dict[str, str] = {}
        paths = [path for path, file in files.items() if file.kind != "directory"]
        for start in range(0, len(paths), _MAX_SCRIPT_NAMES):
            batch = paths[start : start + _MAX_SCRIPT_NAMES]
            contents |= self._read_contents(batch, files)
        return {
            path: FileState("directory", mode=file.mode)
            if file.kind == "directory"
            else FileState(file.kind, contents.get(path) or _UNREADABLE, file.mode)
            for path, file in files.items()
        }

    def _read_contents(
        self, paths: list[str], files: Mapping[str, RemoteFile]
    ) -> Iterable[tuple[str, str]]:
        lines = [CONTENT_FUNCTIONS]
        plain: list[str] = []
        for index, path in enumerate(paths):
            name = shlex.quote(f"./{path}")
            if files[path].kind == "link":
                lines.append(f"link {index} {name}\n")
            elif any(letter in path for letter in "\n\r\\"):
                lines.append(f"one {index} {name}\n")
            else:
                plain.append(name)
        for start in range(0, len(plain), _MAX_NAMES):
            lines.append(f"sum {' '.join(plain[start : start + _MAX_NAMES])}\n")
        asked = set(paths)
        for line in self._evaluate_script("".join(lines) + ":\n").split(b"\n"):
            if match := _DIGEST.fullmatch(line):
                path = os.fsdecode(match[3])
                if path in asked:
                    yield path, match[2].decode()
            elif (match := _INDEXED.fullmatch(line)) and int(match[1]) < len(paths):
                path = paths[int(match[1])]
                is_link = files[path].kind == "link"
                yield path, os.fsdecode(match[2] if is_link else match[2][:64])

    def pack_files(self, paths: Iterable[str], archive: BinaryIO, *, limit: int) -> None:
        """Write an archive of files and links there; those that cannot be read are left out."""
        names = " ".join(shlex.quote(f"./{path}") for path in paths)
        script = f"tar -cf - {names} 2>/dev/null\n[ $? -le 2 ]\n"
        self._evaluate_script(script, archive, limit=limit)

    def apply(self, archive: BinaryIO) -> tuple[str, ...]:
        """Send ``files/…`` and a ``plan``; return new names of files that were in the way."""
        place = self._place
        output = self._run_script(APPLY_SCRIPT, place.directory, place.stage, source=archive)
        lines = os.fsdecode(output).split("\n")
        kept = (line.removeprefix("kept ") for line in lines if line.startswith("kept "))
        return tuple(map(posixpath.normpath, kept))

    def _evaluate_script(
        self, script: str, target: BinaryIO | None = None, *, limit: int = _MAX_OUTPUT
    ) -> bytes:
        place = self._place
        with tempfile.TemporaryFile() as source:
            source.write(os.fsencode(script))
            source.seek(0)
            return self._run_script(
                EVAL_SCRIPT, place.directory, source=source, target=target, limit=limit
            )

    def _run_script(
        self,
        script: str,
        *args: str,
        source: BinaryIO | None = None,
        target: BinaryIO | None = None,
        limit: int = _MAX_OUTPUT,
    ) -> bytes:
        with tempfile.TemporaryFile() as empty, tempfile.TemporaryFile() as output:
            self._runner.pipe_script(
                script, *args, source=source or empty, target=target or output, limit=limit
            )
            output.seek(0)
            return output.read()

    def _invalid_answer(self, what: str) -> OutsideError:
        return OutsideError(f"invalid answer of {self._runner.name}: {what}")


def _join_lines(lines: Iterable[bytes]) -> Iterator[tuple[re.Match[bytes], str]]:
    """Yield listed files with their names, which may have several lines; not the top directory."""
    match: re.Match[bytes] | None = None
    name = b""
    for line in (*lines, None):
        found = None if line is None else _LISTED_FILE.fullmatch(line)
        if line is not None and found is None:
            name += b"\n" + line
            continue
        if match is not None and name != b".":
            yield match, os.fsdecode(name.removeprefix(b"./"))
        match, name = found, found[5] if found is not None else b""


def _parse_file(match: re.Match[bytes], *, newest: int) -> RemoteFile | None:
    mode = int(match[2], 16)
    text = match[1].decode()
    hint = text if int(match[4]) < newest else ""
    size = int(match[3])
    if stat.S_ISREG(mode):
        return RemoteFile("file", mode & 0o777, size, text, hint)
    if stat.S_ISLNK(mode):
        return RemoteFile("link", 0, 0, text, hint)
    if stat.S_ISDIR(mode):
        return RemoteFile("directory", mode & 0o777 | 0o700, 0, text, "")
    return None
