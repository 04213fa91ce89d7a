"""What both sides of a synchronization know about files, and the reports for the user."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Sequence
from typing import BinaryIO, Literal, Protocol

import msgspec

from danlu.util.sanitize import escape_unprintable

#: Appended to the name of the other side's version of a file that both sides have changed.
CONFLICT_SUFFIX = ".remote"
#: A directory of unfinished files, in a copy that cannot have one next to it.
STAGE_NAME = ".danlu-sync"
_MAX_LISTED = 5


class ScriptRunner(Protocol):
    """Runs shell scripts on the other side, in the home directory of its user."""

    @property
    def name(self) -> str:
        """What the other side is called in messages."""

    def pipe_script(
        self, script: str, *args: str, source: BinaryIO, target: BinaryIO, limit: int
    ) -> None:
        """Run a script, which reads ``source`` and writes to ``target``, two files on disk.

        Raises :class:`~danlu.errors.DanluError` with what it printed on stderr if it fails, if it
        prints more than ``limit`` bytes, and if the connection is lost.
        """


class CopyPlace(msgspec.Struct, frozen=True):
    """Where the copy is on the other side; relative paths are below the user's home directory.

    ``stage`` is a directory of the same file system for unfinished files. ``volume`` identifies
    the disk: another one has another copy. ``volume_file`` keeps it, if it is not known.
    """

    directory: str
    stage: str
    volume: str = ""
    volume_file: str = ""


class FileState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a path is: ``content`` is a file's SHA-256, or a link's target."""

    kind: Literal["file", "directory", "link"]
    content: str = ""
    mode: int = 0

    def has_content_of(self, other: FileState | None) -> bool:
        """Return whether both are equal but for the mode."""
        return other is not None and (self.kind, self.content) == (other.kind, other.content)


class SyncedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was here and there when both sides were last known to be equal.

    ``hint`` is the other side's ``stat`` of a file with that content. ``pending`` are versions that
    were sent since, and may have arrived.
    """

    here: FileState | None = None
    there: FileState | None = None
    hint: str = ""
    pending: tuple[FileState, ...] = ()


class SyncReport(msgspec.Struct):
    """What was exchanged: ``copied`` are the names that it has where it was written.

    ``conflicts`` are new names, there or here, of the other side's version of files that both sides
    had changed. ``removed`` were removed there as they were here. ``skipped`` could not be read
    there or written here. ``outside`` are links that lead out of the project, which are not copied.
    ``ignored`` was made there and does not belong to the project.
    """

    copied: list[str] = []
    conflicts: list[str] = []
    removed: list[str] = []
    skipped: list[str] = []
    outside: list[str] = []
    ignored: list[str] = []

    def list_notes(self, there: str) -> list[str]:
        """Return sentences for the user; ``there`` is what the other side is called."""
        lists = {
            f"changed on both sides; the version of {there} now is": self.conflicts,
            f"removed on {there}, as here": self.removed,
            f"could not be read on {there}, or written here": self.skipped,
            "not copied, because the link leads out of the project": self.outside,
            f"made on {there}, but ignored by the project": _group_by_directory(self.ignored),
        }
        return [f"{what}: {_format_paths(paths)}" for what, paths in lists.items() if paths]


def _format_paths(paths: Sequence[str]) -> str:
    # The other side may have chosen the names.
    shown = ", ".join(escape_unprintable(path) for path in paths[:_MAX_LISTED])
    left = len(paths) - _MAX_LISTED
    return f"{shown} and {left} more" if left > 0 else shown


def _group_by_directory(paths: Sequence[str]) -> list[str]:
    """Return top directories with the number of paths in them; a single path unchanged."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.split("/")[0], []).append(path)
    return [
        found[0] if len(found) == 1 else f"{top}/ ({len(found)} files)"
        for top, found in groups.items()
    ]


def is_private_name(name: str) -> bool:
    """Return whether a component of a path is never exchanged: git's directory, or our stage.

    File systems of macOS ignore case and characters that are not visible.
    """
    if not name.isascii():
        name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    plain = name.casefold()
    return plain == ".git" or plain.startswith(STAGE_NAME)


def stays_inside(path: str, target: str) -> bool:
    """Return whether a link at ``path`` leads into the project.

    ``..`` may only come first: behind another link it would mean something else.
    """
    parts = target.split("/")
    depth = 0
    while parts and parts[0] in ("..", "."):
        depth += parts.pop(0) == ".."
    return (
        not posixpath.isabs(target)
        and depth <= path.count("/")
        and ".." not in parts
        and not any(map(is_private_name, parts))
    )


def list_parents(path: str) -> list[str]:
    """Return the directories above a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
