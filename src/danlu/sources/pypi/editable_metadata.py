"""The metadata of a package that is installed editable (PEP 660): what its installation depends on.

An editable package is used from the mounted project, so a build does not depend on its source
code. It depends on its metadata: what ``pyproject.toml``, ``setup.cfg`` and ``setup.py`` say about
building the package, the files that these take values from, and the names that can be imported.
"""

from __future__ import annotations

import ast
import configparser
import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from danlu.errors import ResolveError, UsageError
from danlu.sources.pypi.source_tree import copy_source
from danlu.util.safe_paths import ProjectTree

#: Tables below ``tool`` that no build backend reads.
_DEVELOPMENT_TOOLS = frozenset(
    {
        *("autopep8", "bandit", "basedpyright", "black", "bumpversion", "check-manifest"),
        *("cibuildwheel", "codespell", "commitizen", "coverage", "danlu", "djlint", "doit"),
        *("flake8", "hypothesis", "importlinter", "interrogate", "isort", "jupytext", "mutmut"),
        *("mypy", "nbqa", "nox", "pixi", "poe", "pydocstyle", "pylint", "pyright", "pytest"),
        *("pytype", "refurb", "ruff", "rye", "semantic_release", "taskipy", "towncrier", "tox"),
        *("ty", "vulture", "yapf"),
    }
)

#: Tables below a backend's own that describe the work on a project.
_DEVELOPMENT_TABLES = {
    "hatch": frozenset({"envs", "publish"}),
    "pdm": frozenset({"dev-dependencies", "scripts", "source"}),
    "poetry": frozenset({"dev-dependencies", "group", "source"}),
}

#: What uv's own backend reads; the rest of ``tool.uv`` is for uv as an installer.
_UV_BACKEND = "build-backend"

_LICENSE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS).*")
_README = re.compile(r"readme(\..*)?", re.IGNORECASE)
_VERSION_NAME = re.compile(r"_*version(_?info|_?tuple)?_*", re.IGNORECASE)

#: Directories of Python code that are no part of a package, even with ``__init__.py``.
_NO_PACKAGES = frozenset({"benchmarks", "docs", "examples", "scripts", "test", "tests"})

_MAX_FILE_NAME = 256
_MAX_NAMESPACE_DEPTH = 4


class _PackageMetadata:
    """What belongs to the metadata of the package in ``directory``, as far as it was collected.

    ``values`` are what is digested, by name. ``readmes`` are descriptions for an index, which an
    installed package does not need: they don't count.
    """

    def __init__(self, tree: ProjectTree, directory: str) -> None:
        self._tree = tree
        self._directory = directory
        self.values: dict[str, object] = {}
        self.readmes: set[str] = set()
        self._import_roots = {".", "src"}

    def collect(self) -> None:
        """Collect everything."""
        self._add_pyproject()
        self._add_setup_cfg()
        for name in self._list_names("."):
            if _LICENSE_FILE.fullmatch(name):
                self._add_file(name)
        names = {root: self._list_import_names(root) for root in sorted(self._import_roots)}
        self.values["names"] = names
        self._add_setup_py(names)

    # -- files that declare metadata

    def _add_pyproject(self) -> None:
        content = self._read_file("pyproject.toml")
        if content is None:
            return
        try:
            document = tomllib.loads(content.decode())
        except ValueError:
            self._add_file("pyproject.toml")  # the build backend reports it
            return
        tables = {
            "build-system": document.get("build-system"),
            "project": document.get("project"),
            "tool": _select_tools(_get_table(document, "tool")),
        }
        self.values["pyproject.toml"] = tables
        for keys, text in _list_strings(tables):
            self._add_reference(keys, text)
        self._add_flit_module(tables)

    def _add_reference(self, keys: Sequence[str], text: str) -> None:
        """Add what a value of ``pyproject.toml`` refers to, if that is a file of the package."""
        path = _clean_path(text)
        if "readme" in keys or "description-file" in keys:
            if path:
                self.readmes.add(path)
        elif keys[-1] == "attr":
            self._add_attribute(text)
        elif "backend-path" in keys and path:
            for name in self._list_names(path):
                if name.endswith(".py"):
                    self._add_file(os.path.normpath(f"{path}/{name}"))
        elif path and self._is_directory(path):
            if not self._is_file(f"{path}/__init__.py"):
                self._import_roots.add(path)
        elif path:
            self._add_file(path, only_version="version" in keys)

    def _add_flit_module(self, tables: Mapping[str, Any]) -> None:
        """Add the docstring and the version of flit's module, which are its dynamic fields."""
        if not str(_get_table(tables, "build-system").get("build-backend", "")).startswith("flit"):
            return
        flit = _get_table(_get_table(tables, "tool"), "flit")
        name = str(
            _get_table(flit, "module").get("name")
            or _get_table(flit, "metadata").get("module")
            or _get_table(tables, "project").get("name", "")
        )
        self._add_module(name.replace("-", "_"), docstring=True)

    def _add_setup_cfg(self) -> None:
        content = self._read_file("setup.cfg")
        if content is None:
            return
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(content.decode())
        except (configparser.Error, ValueError):
            self._add_file("setup.cfg")
            return
        sections = {
            name: dict(parser[name])
            for name in parser.sections()
            if name.split(".")[0] in ("metadata", "options", "build", "build_ext", "bdist_wheel")
        }
        self.values["setup.cfg"] = sections
        for keys, text in _list_strings(sections):
            kind, _, value = text.partition(":")
            for name in re.split(r"[,\s]+", value):
                if kind.strip() == "attr":
                    self._add_attribute(name)
                elif kind.strip() == "file" and (path := _clean_path(name)):
                    if keys[-1] in ("long_description", "description_file"):
                        self.readmes.add(path)
                    else:
                        self._add_file(path, only_version=keys[-1] == "version")

    def _add_setup_py(self, names: Mapping[str, Sequence[str]]) -> None:
        """Add ``setup.py``, and the files whose names are in it: it may read these."""
        content = self._read_file("setup.py")
        if content is None:
            return
        self._add_file("setup.py")
        try:
            module = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError):
            return
        constants = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
        inside = [
            os.path.normpath(f"{root}/{name.replace('.', '/')}")
            for root, imported in names.items()
            for name in imported
        ]
        for path in sorted({_clean_path(text) for text in constants if isinstance(text, str)}):
            if _README.fullmatch(os.path.basename(path)):
                self.readmes.add(path)
            elif path.endswith(".py"):
                # A module that is named to be imported matters only if it has the version.
                for place in (path, *(f"{directory}/{path}" for directory in inside)):
                    self._add_file(place, only_version=True, otherwise_ignore=True)
            elif path:
                self._add_file(path)

    # -- files that metadata refers to

    def _add_attribute(self, text: str) -> None:
        """Add the module of an attribute (``mine.version.__version__``)."""
        self._add_module(text.strip().rpartition(".")[0])

    def _add_module(self, name: str, *, docstring: bool = False) -> None:
        stem = name.replace(".", "/")
        if not re.fullmatch(r"[\w/]+", stem):
            return
        for root in sorted(self._import_roots):
            for path in (f"{root}/{stem}.py", f"{root}/{stem}/__init__.py"):
                self._add_file(os.path.normpath(path), only_version=True, docstring=docstring)

    def _add_file(
        self,
        path: str,
        *,
        only_version: bool = False,
        docstring: bool = False,
        otherwise_ignore: bool = False,
    ) -> None:
        """Add the content of a file; of a module with a version only that, with the docstring."""
        content = self._read_file(path)
        if content is None or path in self.values:
            return
        if only_version and path.endswith(".py"):
            found = _read_version(content, docstring=docstring)
            if found is not None:
                self.values[f"file {path}"] = found
                return
            if otherwise_ignore:
                return
        self.values[f"file {path}"] = hashlib.sha256(content).hexdigest()

    def _list_import_names(self, root: str, depth: int = 0) -> list[str]:
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
                    inner = self._list_import_names(below, depth + 1)
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


def _get_table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table, empty if ``values`` has something else under that name."""
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}


def _select_tools(tools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables below ``tool`` that a build backend may read."""
    selected: dict[str, Any] = {}
    for name, table in tools.items():
        if name in _DEVELOPMENT_TOOLS:
            continue
        if not isinstance(table, dict):
            selected[name] = table
        elif name == "uv":
            selected[name] = {_UV_BACKEND: table.get(_UV_BACKEND)}
        else:
            left_out = _DEVELOPMENT_TABLES.get(name, frozenset())
            selected[name] = {key: value for key, value in table.items() if key not in left_out}
    return selected


def _list_strings(value: object, keys: tuple[str, ...] = ()) -> Iterator[tuple[list[str], str]]:
    """Yield each text below ``value`` with the keys that lead to it, without list positions."""
    if isinstance(value, str):
        yield list(keys), value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _list_strings(inner, (*keys, str(key)))
    elif isinstance(value, list):
        for inner in value:
            yield from _list_strings(inner, keys)


def _clean_path(text: str) -> str:
    """Return a relative path in normal form; empty if ``text`` cannot be a path in the package."""
    if not text or len(text) > _MAX_FILE_NAME or not text.isprintable() or "://" in text:
        return ""
    path = os.path.normpath(text.strip())
    return "" if path.startswith(("/", "..", "~", "-")) or path == "." else path


def _read_version(content: bytes, *, docstring: bool) -> list[str] | None:
    """Return a module's assignments of its version (and its docstring); None if it has none."""
    try:
        module = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [
        ast.unparse(node)
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(
            isinstance(target, ast.Name) and _VERSION_NAME.fullmatch(target.id)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
    ]
    if docstring:
        found.append(ast.get_docstring(module) or "")
    return found or None


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


def _collect_metadata(project: Path, source: str | Path) -> _PackageMetadata:
    directory = locate_editable(project, source)
    with ProjectTree(project) as tree:
        metadata = _PackageMetadata(tree, directory)
        metadata.collect()
        return metadata


def digest_metadata(project: Path, source: str | Path) -> str:
    """Return ``sha256:…`` of the metadata of the package in a directory of the project."""
    return _digest_values(_collect_metadata(project, source))


def copy_for_editable(project: Path, source: str | Path, place: Path) -> str:
    """Copy a package's source files to ``place``; return its metadata's digest (hexadecimal).

    Its README is empty there, so that the result does not depend on it.
    """
    metadata = _collect_metadata(project, source)
    copy_source(project, source, place)
    for readme in metadata.readmes:
        _empty_file(place, readme)
    return _digest_values(metadata).removeprefix("sha256:")


def _empty_file(place: Path, name: str) -> None:
    """Replace a file of the copy, which may be a link to anywhere, by an empty one."""
    with ProjectTree(place) as tree:
        try:
            real = tree.real_path(os.path.dirname(name) or ".")
        except UsageError:
            return
    path = place / (real or "") / os.path.basename(name)
    if real is None or path.is_dir() or not os.path.lexists(path):
        return
    path.unlink()
    path.touch()


def _digest_values(metadata: _PackageMetadata) -> str:
    text = json.dumps(metadata.values, sort_keys=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
