"""Which files of the user's own modules a job needs: those that it would not find."""

from __future__ import annotations

import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from danlu.commands.imports import imported, parsed
from danlu.commands.trees import Limit, content, files_below
from danlu.errors import UsageError

__all__ = ["Entry", "Found", "editable_file", "entries", "find"]

#: Never sent: a job has it, or a file of its own in its place.
_OURS = "danlu"
_INSTALLED = ("site-packages", "dist-packages")


class Entry(msgspec.Struct, frozen=True):
    """A directory of the search path; ``local`` is one whose modules are the user's own."""

    path: Path
    local: bool


class Found(msgspec.Struct, frozen=True):
    """Local modules: their files by the path below the directory they are sent in, and names."""

    files: Mapping[str, Path]
    names: tuple[str, ...]


def entries(path: Sequence[str], *, place: Path, elsewhere: bool) -> tuple[Entry, ...]:
    """The directories of a search path, and which of them are the user's own.

    Not so is the standard library, what is installed, and what is installed as editable, unless
    that lies below ``place``, the notebook's directory, or the job runs ``elsewhere``: in an
    environment that does not have this Python's editable distributions.
    """
    standard = {os.path.realpath(one) for one in _standard()}
    editable = set() if elsewhere else set(_editable())
    found = {}
    for word in path:
        one = Path(os.path.abspath(place / word))
        if one not in found and one.is_dir():
            real = os.path.realpath(one)
            local = real not in standard and not set(_INSTALLED) & {*one.parts, *Path(real).parts}
            found[one] = local and (one not in editable or one.is_relative_to(place.absolute()))
    return tuple(Entry(one, local) for one, local in found.items())


def _standard() -> Iterator[str]:
    for name in ("stdlib", "platstdlib"):
        yield sysconfig.get_path(name)
        yield os.path.join(sysconfig.get_path(name), "lib-dynload")


def _editable() -> Iterator[Path]:
    """What ``.pth`` files of installed distributions add to the search path."""
    for place in (*site.getsitepackages(), site.getusersitepackages()):
        for file in sorted(Path(place).glob("*.pth")):
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            for line in lines:
                if line and not line.startswith(("#", "import ", "import\t")):
                    yield Path(os.path.abspath(os.path.join(place, line.strip())))


def editable_file(name: str) -> Path | None:
    """The file of a top-level module that an editable distribution brings by a finder of its own.

    So do setuptools for a flat layout, meson-python and scikit-build-core.
    """
    for finder in sys.meta_path:
        if "editable" in str(getattr(finder, "__module__", "")).lower():
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                return Path(spec.origin)
    return None


def find(
    wanted: Iterable[str],
    places: Sequence[Entry],
    *,
    needed: Sequence[str] = (),
    elsewhere: bool = False,
    limit: Limit | None = None,
) -> Found:
    """The files of the local modules among ``wanted``, and of all that those import.

    A package is sent whole, with its data; of a directory without ``__init__.py`` only the modules
    that are imported. Files are taken as they are on disk now. Those ``needed`` must be there;
    ``elsewhere`` is as :func:`entries` takes it.
    Raises :class:`UsageError` for one that is not, and for packages too large to send.
    """
    search = _Search(places, editable_file if elsewhere else lambda name: None, limit or Limit())
    for name in needed:
        if not search.want(name):
            raise _missing(name, places)
    for name in wanted:
        search.want(name)
    search.finish()
    names = sorted({one.partition("/")[0].partition(".")[0] for one in search.files})
    return Found(dict(sorted(search.files.items())), tuple(names))


def _missing(name: str, places: Sequence[Entry]) -> UsageError:
    local = [entry.path for entry in places if entry.local]
    known = {one.name.partition(".")[0] for path in local for one in path.glob("*")}
    near = get_close_matches(name, sorted(one for one in known if one.isidentifier()), 1)
    hint = f"did you mean {near[0]}?" if near else "what is installed need not be sent"
    return UsageError(f"there is no local module {name} to send", hint=hint)


class _Where(msgspec.Struct, frozen=True):
    """Where a module is: its file, or the directories of a package; where below ``modules``."""

    path: str
    file: Path | None = None
    directories: tuple[Path, ...] = ()


class _Search:
    """Follows imports through local files, each file read once."""

    def __init__(
        self, places: Sequence[Entry], otherwise: Callable[[str], Path | None], limit: Limit
    ) -> None:
        self.files: dict[str, Path] = {}
        self._places = places
        self._otherwise = otherwise
        self._limit = limit
        self._known: dict[str, _Where | None] = {}
        self._unread: list[str] = []

    def want(self, name: str) -> bool:
        """Take the module ``name`` and the packages above it; whether it is a local one."""
        parts = name.split(".")
        above: _Where | None = None
        for number in range(1, len(parts) + 1):
            dotted = ".".join(parts[:number])
            if dotted not in self._known:
                self._known[dotted] = self._found(parts[:number], above)
            above = self._known[dotted]
            if above is None:
                return False
        return True

    def finish(self) -> None:
        """Follow the imports of all that was taken."""
        while self._unread:
            path = self._unread.pop()
            tree = parsed(content(self.files[path]))
            if tree is not None:
                package = path.rpartition("/")[0].replace("/", ".")
                for name in imported(tree, package=package):
                    self.want(name)

    def _found(self, parts: Sequence[str], above: _Where | None) -> _Where | None:
        if above is not None and not above.directories:
            return None
        where = _inside(above, parts[-1]) if above is not None else self._top(parts[0])
        if where is not None:
            self._take(where)
        return where

    def _top(self, name: str) -> _Where | None:
        if name == _OURS or name in sys.builtin_module_names:
            return None
        portions: list[Path] = []
        for entry in self._search_order(name):
            file = _file_of(entry.path, name)
            if file is not None:
                return _where(name, file) if entry.local else None
            if entry.local and (entry.path / name).is_dir():
                portions.append(entry.path / name)
        if portions:
            return _Where(name, directories=tuple(portions))
        file = self._otherwise(name)
        return _where(name, file) if file is not None else None

    def _search_order(self, name: str) -> Sequence[Entry]:
        """The standard library first: a local file of such a name is not what is imported."""
        if name not in sys.stdlib_module_names:
            return self._places
        return sorted(self._places, key=lambda one: one.local)

    def _take(self, where: _Where) -> None:
        if where.file is None:
            return
        taken = {where.path: where.file}
        if where.directories:
            taken = files_below(where.directories[0], where.path, self._limit)
        new = [one for one in taken if one not in self.files]
        self.files.update({one: taken[one] for one in new})
        self._unread += [one for one in new if one.endswith(".py")]
        self._limit.check(self.files)


def _inside(above: _Where, name: str) -> _Where | None:
    prefix = f"{above.path}/{name}"
    for directory in above.directories:
        file = _file_of(directory, name)
        if file is not None:
            return _where(prefix, file)
    portions = tuple(one / name for one in above.directories if (one / name).is_dir())
    return _Where(prefix, directories=portions) if portions else None


def _where(path: str, file: Path) -> _Where:
    if file.name.startswith("__init__."):
        return _Where(path, file, (file.parent,))
    return _Where(f"{path.rpartition('/')[0]}/{file.name}".lstrip("/"), file)


def _file_of(directory: Path, name: str) -> Path | None:
    """What ``import`` takes for a name in a directory: a package, a library in C, a module."""
    suffixes = (*importlib.machinery.EXTENSION_SUFFIXES, ".py", ".pyc")
    for stem in (f"{name}/__init__", name):
        for suffix in suffixes:
            file = directory / f"{stem}{suffix}"
            if file.is_file():
                return file
    return None
