"""The metadata of a package that is installed editable (PEP 660): what its installation depends on.

An editable package is used from the mounted project, so a build does not depend on its source
code. It depends on the files that declare its metadata (uv's rule, with the licenses and the lists
of requirements at the top of the package, and what ``pyproject.toml`` and ``setup.cfg`` read
dynamically) and on the names that can be imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

from danlu.errors import ResolveError, UsageError
from danlu.sources.pypi.source_tree import copy_source
from danlu.util.safe_paths import ProjectTree

_METADATA_FILE = re.compile(
    r"pyproject\.toml|setup\.py|setup\.cfg"
    r"|(LICEN[CS]E|COPYING|NOTICE|AUTHORS).*|[\w.-]*requirements?[\w.-]*\.(txt|in)"
)
#: The description for an index, which an installed package does not need: it does not count.
_README = re.compile(r"readme(\..*)?", re.IGNORECASE)

#: Directories of Python code that are no part of a package, even with ``__init__.py``.
_NO_PACKAGES = frozenset({"benchmarks", "docs", "examples", "scripts", "test", "tests"})

_MAX_NAMESPACE_DEPTH = 4


class _PackageDirectory:
    """The directory of a package in the project."""

    def __init__(self, tree: ProjectTree, directory: str) -> None:
        self._tree = tree
        self._directory = directory

    def digest_files(self) -> dict[str, str]:
        """Return the digests of the files that declare metadata, by name."""
        contents = {
            name: self._read_file(name)
            for name in self._list_names(".")
            if _METADATA_FILE.fullmatch(name)
        }
        for name, attribute in (
            *_list_dynamic_files(contents.get("pyproject.toml") or b""),
            *_list_directives(contents.get("setup.cfg") or b""),
        ):
            path = os.path.normpath(name)
            if not path.startswith(("/", "..")) and not _README.fullmatch(os.path.basename(path)):
                contents[path] = self._read_value(path, attribute)
        return {
            name: hashlib.sha256(content).hexdigest()
            for name, content in contents.items()
            if content is not None
        }

    def _read_value(self, path: str, attribute: str) -> bytes | None:
        """Return the lines that assign an attribute; of other files than code, all lines."""
        content = self._read_file(path)
        if content is None or not path.endswith(".py"):
            return content
        name = re.escape(attribute.encode())
        return b"\n".join(re.findall(rb"^[ \t]*(?:%s)[ \t]*[:=].*" % name, content, re.MULTILINE))

    def list_import_names(self, root: str, depth: int = 0) -> list[str]:
        """Return the packages below ``root``, or the modules if it has none, sorted.

        At the top of a project, only a directory with ``__init__.py`` is a package.
        """
        names: list[str] = []
        modules: list[str] = []
        for name in self._list_names(root):
            below = os.path.normpath(f"{root}/{name}")
            if name.endswith(".py") and self._is_file(below):
                modules.append(name[:-3])
            elif name.isidentifier() and self._is_directory(below):
                if self._is_file(f"{below}/__init__.py"):
                    names.append(name)
                elif root != "." and depth < _MAX_NAMESPACE_DEPTH:
                    # A namespace package (PEP 420).
                    inner = self.list_import_names(below, depth + 1)
                    names += [f"{name}.{module}" for module in inner]
        if root == ".":
            names = [name for name in names if name not in _NO_PACKAGES]
            if names or self._is_directory("src"):
                modules = []
        return sorted({*names, *modules})

    # -- the file system

    def _read_file(self, path: str) -> bytes | None:
        try:
            return self._tree.read_bytes(f"{self._directory}/{path}")
        except (OSError, UsageError):
            return None

    def _find_kind(self, path: str) -> int:
        """Return the kind of what ``path`` is, or links to; 0 if that is nothing of the project."""
        try:
            real = self._tree.real_path(f"{self._directory}/{path}")
            status = None if real is None else self._tree.status(real)
        except (OSError, UsageError):
            return 0
        return 0 if status is None else stat.S_IFMT(status.st_mode)

    def _is_directory(self, path: str) -> bool:
        return self._find_kind(path) == stat.S_IFDIR

    def _is_file(self, path: str) -> bool:
        return self._find_kind(path) == stat.S_IFREG

    def _list_names(self, path: str) -> list[str]:
        try:
            directory = self._tree.open_directory(self._tree.split(f"{self._directory}/{path}"))
            return [] if directory is None else sorted(os.listdir(directory))
        except (OSError, UsageError):
            return []


def _list_dynamic_files(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield the files that a ``pyproject.toml`` takes metadata from, with the attribute.

    The tables are those of setuptools, hatch, PDM and scikit-build-core.
    """
    try:
        tool = tomllib.loads(text.decode()).get("tool", {})
    except ValueError:
        return
    tables = [("setuptools", "dynamic"), ("hatch", "version"), ("pdm", "version")]
    for program, name in (*tables, ("scikit-build", "metadata")):
        table = tool.get(program) if isinstance(tool, dict) else None
        yield from _list_values(table.get(name) if isinstance(table, dict) else None)


def _list_values(table: object) -> Iterator[tuple[str, str]]:
    for key, value in table.items() if isinstance(table, dict) else ():
        texts = [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
        texts += [value] if isinstance(value, str) else []
        if key in ("file", "path", "input"):
            yield from ((text, "__version__") for text in texts)
        elif key == "attr":
            yield from (place for text in texts for place in _locate_attribute(text))
        else:
            yield from _list_values(value)


def _list_directives(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield the files that a ``setup.cfg`` names with ``file:`` or ``attr:``."""
    for kind, value in re.findall(r"=\s*(file|attr):(.*)", text.decode(errors="replace")):
        for name in filter(None, (item.strip() for item in value.split(","))):
            yield from [(name, "")] if kind == "file" else _locate_attribute(name)


def _locate_attribute(text: str) -> Iterator[tuple[str, str]]:
    """Yield where the module of ``package.module.attribute`` can be."""
    module, _, attribute = text.rpartition(".")
    path = module.replace(".", "/")
    for name in (f"{path}.py", f"{path}/__init__.py") if path else ():
        yield from ((name, attribute), (f"src/{name}", attribute))


def locate_editable(project: Path, source: str | Path) -> str:
    """Return the link-free path of a package's directory, relative to the project.

    Raises :class:`ResolveError` if it does not exist or is a file.
    """
    with ProjectTree(project) as tree:
        real = tree.real_path(source)
        status = None if real is None else tree.status(real)
        name = os.path.relpath(tree.project / source, tree.project)
        if real is None:
            raise ResolveError(f"{name} not found in the project")
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise ResolveError(f"{name} is not a directory", hint="-e needs a directory")
        return str(real)


def digest_metadata(project: Path, source: str | Path) -> str:
    """Return ``sha256:…`` of the metadata of the package in a directory of the project."""
    directory = locate_editable(project, source)
    with ProjectTree(project) as tree:
        package = _PackageDirectory(tree, directory)
        names = {root: package.list_import_names(root) for root in (".", "src")}
        text = json.dumps({"files": package.digest_files(), "names": names}, sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def copy_for_editable(project: Path, source: str | Path, place: Path) -> str:
    """Copy a package's source files to ``place``; return its metadata's digest (hexadecimal).

    Its README is empty there, so that the result does not depend on it.
    """
    digest = digest_metadata(project, source)
    copy_source(project, source, place)
    for path in place.iterdir():
        if _README.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            # It may be a link to anywhere.
            path.unlink()
            path.touch()
    return digest.removeprefix("sha256:")
