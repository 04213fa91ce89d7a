"""Find the files of the user's own modules that a job needs and would not find."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.util.human import format_size

#: Never sent: a job has danlu, or a file in its place.
_OWN_PACKAGE = "danlu"
_SITE_DIRECTORIES = ("site-packages", "dist-packages")


class SearchPathEntry(msgspec.Struct, frozen=True):
    """A directory of the search path; its modules are the user's own if it is local."""

    path: Path
    is_local: bool


class LocalModules(msgspec.Struct, frozen=True):
    """Local modules: their files by the path they are sent to, and their names."""

    files: Mapping[str, Path]
    names: tuple[str, ...]


def classify_search_path(
    path: Sequence[str], *, place: Path, elsewhere: bool
) -> tuple[SearchPathEntry, ...]:
    """Return the directories of a search path, and which of them are local.

    The standard library and installed packages are not local. Editable installs are local only if
    they are below ``place`` (the notebook's directory), or if the job runs ``elsewhere``: in an
    environment without this Python's editable installs.
    """
    standard = {os.path.realpath(path) for path in _standard_library_paths()}
    editable = set() if elsewhere else set(_editable_paths())
    found = {}
    for word in path:
        one = Path(os.path.abspath(place / word))
        if one not in found and one.is_dir():
            real = os.path.realpath(one)
            local = real not in standard and not set(_SITE_DIRECTORIES) & {
                *one.parts,
                *Path(real).parts,
            }
            found[one] = local and (one not in editable or one.is_relative_to(place.absolute()))
    return tuple(SearchPathEntry(directory, local) for directory, local in found.items())


def _standard_library_paths() -> Iterator[str]:
    for name in ("stdlib", "platstdlib"):
        yield sysconfig.get_path(name)
        yield os.path.join(sysconfig.get_path(name), "lib-dynload")


def _editable_paths() -> Iterator[Path]:
    """Yield what ``.pth`` files of editable installs add to the search path."""
    for place in (*site.getsitepackages(), site.getusersitepackages()):
        for file in sorted(Path(place).glob("*.pth")):
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            for line in lines:
                if line and not line.startswith(("#", "import ", "import\t")):
                    yield Path(os.path.abspath(os.path.join(place, line.strip())))


def find_editable_file(name: str) -> Path | None:
    """Return the file of a top-level module that an editable install provides through a finder.

    setuptools does that for a flat layout, as do meson-python and scikit-build-core.
    """
    for finder in sys.meta_path:
        if "editable" in str(getattr(finder, "__module__", "")).lower():
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                return Path(spec.origin)
    return None


def find_local_modules(
    wanted: Iterable[str],
    places: Sequence[SearchPathEntry],
    *,
    needed: Sequence[str] = (),
    elsewhere: bool = False,
    limit: TransferLimit | None = None,
) -> LocalModules:
    """Return the files of the local modules among ``wanted``, and of all that they import.

    A package is sent completely, with its data; of a namespace package only the modules that are
    imported. ``needed`` modules must be local; ``elsewhere`` is as for
    :func:`classify_search_path`. Raises :class:`UsageError` for one that is not, and for packages
    that are too large.
    """
    search = _ImportWalker(
        places, find_editable_file if elsewhere else lambda name: None, limit or TransferLimit()
    )
    for name in needed:
        if not search.add_module(name):
            raise _module_not_found(name, places)
    for name in wanted:
        search.add_module(name)
    search.follow_imports()
    names = sorted({file.partition("/")[0].partition(".")[0] for file in search.files})
    return LocalModules(dict(sorted(search.files.items())), tuple(names))


def _module_not_found(name: str, places: Sequence[SearchPathEntry]) -> UsageError:
    local = [entry.path for entry in places if entry.is_local]
    known = {file.name.partition(".")[0] for path in local for file in path.glob("*")}
    near = get_close_matches(name, sorted(module for module in known if module.isidentifier()), 1)
    hint = f"did you mean {near[0]}?" if near else "installed packages need not be sent"
    return UsageError(f"local module {name} not found", hint=hint)


class _ModuleLocation(msgspec.Struct, frozen=True):
    """The location of a module: its path when sent, its file, the directories of a package."""

    path: str
    file: Path | None = None
    directories: tuple[Path, ...] = ()


class _ImportWalker:
    """Follows imports through local files; reads each file once."""

    def __init__(
        self,
        places: Sequence[SearchPathEntry],
        otherwise: Callable[[str], Path | None],
        limit: TransferLimit,
    ) -> None:
        self.files: dict[str, Path] = {}
        self._places = places
        self._otherwise = otherwise
        self._limit = limit
        self._known: dict[str, _ModuleLocation | None] = {}
        self._unread: list[str] = []

    def add_module(self, name: str) -> bool:
        """Add a module and its parent packages; return whether it is local."""
        parts = name.split(".")
        above: _ModuleLocation | None = None
        for number in range(1, len(parts) + 1):
            dotted = ".".join(parts[:number])
            if dotted not in self._known:
                self._known[dotted] = self._locate_module(parts[:number], above)
            above = self._known[dotted]
            if above is None:
                return False
        return True

    def follow_imports(self) -> None:
        """Follow the imports of all modules that were added."""
        while self._unread:
            path = self._unread.pop()
            tree = parse_source(read_content(self.files[path]))
            if tree is not None:
                package = path.rpartition("/")[0].replace("/", ".")
                for name in find_imports(tree, package=package):
                    self.add_module(name)

    def _locate_module(
        self, parts: Sequence[str], above: _ModuleLocation | None
    ) -> _ModuleLocation | None:
        if above is not None and not above.directories:
            return None
        where = (
            _locate_submodule(above, parts[-1])
            if above is not None
            else self._locate_top_level(parts[0])
        )
        if where is not None:
            self._add_files(where)
        return where

    def _locate_top_level(self, name: str) -> _ModuleLocation | None:
        if name == _OWN_PACKAGE or name in sys.builtin_module_names:
            return None
        portions: list[Path] = []
        for entry in self._search_order(name):
            file = _module_file(entry.path, name)
            if file is not None:
                return _module_location(name, file) if entry.is_local else None
            if entry.is_local and (entry.path / name).is_dir():
                portions.append(entry.path / name)
        if portions:
            return _ModuleLocation(name, directories=tuple(portions))
        file = self._otherwise(name)
        return _module_location(name, file) if file is not None else None

    def _search_order(self, name: str) -> Sequence[SearchPathEntry]:
        """Return the path entries; for a standard module the standard library comes first."""
        if name not in sys.stdlib_module_names:
            return self._places
        return sorted(self._places, key=lambda entry: entry.is_local)

    def _add_files(self, where: _ModuleLocation) -> None:
        if where.file is None:
            return
        taken = {where.path: where.file}
        if where.directories:
            taken = list_package_files(where.directories[0], where.path, self._limit)
        new = [file for file in taken if file not in self.files]
        self.files.update({file: taken[file] for file in new})
        self._unread += [file for file in new if file.endswith(".py")]
        self._limit.check(self.files)


def _locate_submodule(above: _ModuleLocation, name: str) -> _ModuleLocation | None:
    prefix = f"{above.path}/{name}"
    for directory in above.directories:
        file = _module_file(directory, name)
        if file is not None:
            return _module_location(prefix, file)
    portions = tuple(
        directory / name for directory in above.directories if (directory / name).is_dir()
    )
    return _ModuleLocation(prefix, directories=portions) if portions else None


def _module_location(path: str, file: Path) -> _ModuleLocation:
    if file.name.startswith("__init__."):
        return _ModuleLocation(path, file, (file.parent,))
    return _ModuleLocation(f"{path.rpartition('/')[0]}/{file.name}".lstrip("/"), file)


def _module_file(directory: Path, name: str) -> Path | None:
    """Return the file that ``import`` uses for a name: a package, an extension or a module."""
    suffixes = (*importlib.machinery.EXTENSION_SUFFIXES, ".py", ".pyc")
    for stem in (f"{name}/__init__", name):
        for suffix in suffixes:
            file = directory / f"{stem}{suffix}"
            if file.is_file():
                return file
    return None


# -- imports --------------------------------------------------------------------------------------

_BY_NAME = ("import_module", "__import__")


def parse_source(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is not valid in this version of Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_imports(tree: ast.AST, *, package: str = "") -> Iterator[str]:
    """Yield every module that is imported anywhere, also inside ``if``, ``try`` and ``def``.

    Names are absolute; ``from a import b`` yields both ``a`` and ``a.b``, which may be a module.
    Relative imports start from ``package``. Names may repeat. ``importlib.import_module("a")``
    counts if its argument is a literal.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from _from_import(node, package)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if called in _BY_NAME:
                    yield from _dynamic_import(node, package)


def _from_import(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = _absolute_name(node.module or "", node.level, package)
    if base:
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _dynamic_import(node: ast.Call, package: str) -> Iterator[str]:
    match node.args:
        case [ast.Constant(value=str(name)), *_] if name:
            plain = name.lstrip(".")
            base = _absolute_name(plain, len(name) - len(plain), package)
            if base:
                yield base


def _absolute_name(name: str, level: int, package: str) -> str:
    """Resolve a relative name with ``level`` dots; empty if it leaves the top-level package."""
    if not level:
        return name
    parents = package.split(".") if package else []
    kept = parents[: len(parents) - level + 1]
    if level > len(parents):
        return ""
    return ".".join([*kept, *([name] if name else [])])


# -- package files --------------------------------------------------------------------------------

_MAX_LISTED = 5
_COMPILED = (".pyc", ".pyo")


class TransferLimit(msgspec.Struct, frozen=True):
    """How many bytes and files of local modules may be sent with a job."""

    size: int = 64 << 20
    count: int = 10_000

    def check(self, files: Mapping[str, Path]) -> None:
        """Raise :class:`UsageError` with the largest files if the limit is exceeded."""
        sizes = {name: path.stat().st_size for name, path in files.items()}
        total = sum(sizes.values())
        if total <= self.size and len(files) <= self.count:
            return
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_MAX_LISTED]
        whole = sorted({name.partition("/")[0] for name in largest})
        raise UsageError(
            f"the imported local modules ({', '.join(whole)}) are too large to send:"
            f" {len(files)} files of {format_size(total)}; the limit is {self.count} files of"
            f" {format_size(self.size)}",
            details=tuple(f"{name}: {format_size(sizes[name])}" for name in largest),
            hint="move data out of packages, and read it from a path or a volume",
        )


def read_content(path: Path) -> bytes:
    """Return the bytes of a file to send; :class:`UsageError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path} to send it with the job: {error.strerror or error}",
            hint="make it readable, or move it out of the imported packages",
        ) from error


def list_package_files(directory: Path, prefix: str, limit: TransferLimit) -> dict[str, Path]:
    """Return the files of a package, modules and data, by the path they are sent to.

    Links are followed. Bytecode, hidden files and virtual environments are skipped. Raises
    :class:`UsageError` if there are more than ``limit`` allows.
    """
    found: dict[str, Path] = {}
    for root, names in _walk_package(directory):
        below = os.path.relpath(root, directory)
        place = prefix if below == "." else f"{prefix}/{below}"
        for name in names:
            found[f"{place}/{name}"] = root / name
        if len(found) > limit.count:
            limit.check(found)
    return found


def _walk_package(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    seen = set()
    for root, directories, files in os.walk(directory, followlinks=True):
        real = os.path.realpath(root)
        if real in seen or "pyvenv.cfg" in files:
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(name for name in directories if _is_sent(name))
        here = Path(root)
        # Skip broken links and sockets.
        yield here, sorted(name for name in files if _is_sent(name) and (here / name).is_file())


def _is_sent(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__" and not name.endswith(_COMPILED)
