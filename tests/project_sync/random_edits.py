"""Random edits on both sides of a synchronization, with what a user may expect of it.

Each file and each link has a content of its own, so it can be followed wherever it goes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NoReturn

from danlu.errors import DanluError
from danlu.project_sync.project_copy import ProjectCopy
from tests.project_sync.far_sides import TwoSides

_NAMES = ("a", "b.txt", "-rf", "two words", "d", "line\nbreak", os.fsdecode(b"caf\xe9"))
_IGNORED = "ignored"
_MODES = (0o600, 0o640, 0o644, 0o755, 0o400)
#: Calls after which a process may be killed.
_FILE_CALLS = ("rename", "replace", "unlink", "mkdir", "symlink", "fsync", "utime")


class EditedSides:
    """Two sides, and which contents must still exist on one of them."""

    def __init__(self, sides: TwoSides, random: Random, *, outside_links: bool = True) -> None:
        self.sides = sides
        self._random = random
        self._outside_links = 0.2 if outside_links else 0
        self._count = 0
        self.written: set[str] = set()
        self.destroyed: set[str] = set()
        self._backups: list[tuple[str, int]] = []
        (sides.here / ".gitignore").write_text(f"{_IGNORED}/\n")

    # -- edits ------------------------------------------------------------------------------------

    def edit(self, root: Path, times: int, *, removes: bool = True) -> None:
        """Do something with files below ``root``, as a user or a program would."""
        actions = [self._write, self._write, self._restore, self._chmod, self._link]
        actions += [self._remove, self._rename] if removes else []
        for _ in range(times):
            action = self._random.choice([*actions, self._write, self._make_directory])
            with suppress(OSError):
                action(root)

    def _choose(self, root: Path) -> Path:
        depth = self._random.randint(1, 3)
        first = [_IGNORED] if self._random.random() < 0.1 else []
        return root.joinpath(*first, *(self._random.choice(_NAMES) for _ in range(depth)))

    def _new_content(self, prefix: str = "") -> str:
        self._count += 1
        content = f"{prefix}content {self._count:06}"
        self.written.add(content)
        return content

    def _write(self, root: Path) -> None:
        path = self._choose(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            return
        self._destroy(path)
        path.unlink(missing_ok=True)
        path.write_text(self._new_content())
        path.chmod(self._random.choice(_MODES))
        if self._random.random() < 0.3:  # the clocks of machines differ
            moment = path.stat().st_mtime + self._random.choice((-1e6, -3600, 3600, 1e6))
            os.utime(path, (moment, moment))

    def _remove(self, root: Path) -> None:
        path = self._choose(root)
        for below in (path, *_list_files(path)):
            self._destroy(below)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def _rename(self, root: Path) -> None:
        source, target = self._choose(root), self._choose(root)
        if target.is_dir() or not os.path.lexists(source) or source in target.parents:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if source != target:
            self._destroy(target)
        os.rename(source, target)

    def _restore(self, root: Path) -> None:
        """Write a file's earlier content with its time, as ``cp -p`` and ``mv`` do."""
        path = self._choose(root)
        if path.is_symlink() or not path.is_file():
            return
        if self._backups and self._random.random() < 0.7:
            content, time = self._random.choice(self._backups)
            self._destroy(path)
            self.destroyed.discard(content)
            path.unlink()
            path.write_text(content)
            os.utime(path, ns=(time, time))
        else:
            self._backups.append((path.read_text(), path.stat().st_mtime_ns))

    def _chmod(self, root: Path) -> None:
        path = self._choose(root)
        if path.is_file() and not path.is_symlink():
            path.chmod(self._random.choice(_MODES))

    def _link(self, root: Path) -> None:
        path = self._choose(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path):
            is_outside = self._random.random() < self._outside_links
            path.symlink_to(self._new_content("../../../../" if is_outside else ""))

    def _make_directory(self, root: Path) -> None:
        self._choose(root).mkdir(parents=True)

    def _destroy(self, path: Path) -> None:
        content = read_content(path)
        if content is not None:
            self.destroyed.add(content)

    # -- exchanges --------------------------------------------------------------------------------

    def exchange(self, action: str, *, cut: bool) -> None:
        """Send or fetch; with ``cut``, something is lost or killed at a random moment."""
        copy = self.sides.copy()
        if not cut:
            run_action(copy, action)
        else:
            cuts = (self._lose_connection, self._kill_there, self._kill_here)
            self._random.choice(cuts)(copy, action)

    def _lose_connection(self, copy: ProjectCopy, action: str) -> None:
        """Cut off what one script reads, or lose what it prints."""
        count = self._random.randint(1, 4)
        part = self._random.random()

        def cut_input(data: bytes) -> int | None:
            nonlocal count
            count -= 1
            return None if count else int(len(data) * min(part * 1.3, 1))

        self.sides.shell.cut = cut_input
        with suppress(DanluError):
            run_action(copy, action)
        self.sides.shell.cut = lambda data: None

    def _kill_there(self, copy: ProjectCopy, action: str) -> None:
        """Kill the script of the other side after one of its programs."""
        self.sides.shell.programs_left = self._random.randint(1, 12)
        with suppress(DanluError):
            run_action(copy, action)
        self.sides.shell.programs_left = None

    def _kill_here(self, copy: ProjectCopy, action: str) -> None:
        kill_after(copy, action, self._random.randint(1, 25))

    # -- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Fail if a content is gone, or has come from nowhere."""
        here, there = self.read_both()
        found = {*here.values(), *there.values()}
        lost = self.written - self.destroyed - found
        assert not lost, f"lost {lost}"
        assert found <= self.written, f"nobody wrote {found - self.written}"

    def read_both(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the contents of both sides by path."""
        here, there = read_contents(self.sides.here), read_contents(self.sides.there)
        for side in (here, there):
            side.pop(".gitignore", None)
        return here, there


def run_action(copy: ProjectCopy, action: str) -> None:
    """Send or fetch."""
    if action == "send":
        copy.send_changes()
    else:
        copy.fetch_changes()


def kill_after(copy: ProjectCopy, action: str, count: int) -> None:
    """Do something in a process that is killed after so many calls about files."""
    child = os.fork()
    if not child:
        _run_and_die(copy, action, count)
    os.waitpid(child, 0)


def _run_and_die(copy: ProjectCopy, action: str, count: int) -> NoReturn:
    for name in _FILE_CALLS:
        original = getattr(os, name)

        def call(*args: object, _original: object = original, **options: object) -> object:
            nonlocal count
            result = _original(*args, **options)  # type: ignore[operator]
            count -= 1
            if not count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, call)
    with suppress(BaseException):
        run_action(copy, action)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def read_content(path: Path) -> str | None:
    """Return a file's content or a link's target."""
    if path.is_symlink():
        return os.readlink(path)
    return path.read_text() if path.is_file() else None


def read_contents(root: Path) -> dict[str, str]:
    """Return the contents of files and links by path, without danlu's own."""
    found = {}
    for path in _list_files(root):
        content = read_content(path)
        if content is not None and not path.name.startswith(".danlu-sync"):
            found[str(path.relative_to(root))] = content
    return found


def _list_files(root: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(root):
        for name in (*directories, *files):
            yield Path(directory, name)


def strip_suffixes(path: str) -> str:
    """Return a path without the suffixes of conflicts."""
    return re.sub(r"\.remote(\.\d+)?(?=/|$)", "", path)
