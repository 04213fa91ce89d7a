"""The source directory of a package in the project: which files count, their digest, and copies."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from danlu.errors import ResolveError
from danlu.sources.build_context import ContextEntry, copy_entries, digest_entries, list_entries
from danlu.sources.file_digests import FileDigests
from danlu.util.safe_paths import ProjectTree

#: Names that are never source files: caches and metadata of tools, and what danlu writes.
_TOOL_FILES = frozenset(
    {
        *(".bzr", ".git", ".hg", ".svn", "CVS"),
        *(".eggs", ".nox", ".tox", ".venv", "__pycache__", "__pypackages__"),
        *(".hypothesis", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
        *(".coverage", ".DS_Store", "danlu.lock"),
    }
)
_TOOL_PREFIXES = (".danlu",)
_TOOL_SUFFIXES = (".egg-info", ".egg-link", ".pyc", ".pyo")

#: Output of build backends and of training programs next to a package's pyproject.toml, unless it
#: is an import package.
_OUTPUTS = frozenset(
    {
        *("build", "checkpoints", "dist", "lightning_logs", "mlruns", "multirun", "outputs"),
        *("runs", "tb_logs", "wandb"),
    }
)

#: Files that say what belongs to a package.
_METADATA_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in")

#: The suffixes of source code, and of files that build backends read.
_CODE_SUFFIXES = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".pxd", ".pxi", ".ipynb", ".c", ".cc", ".cpp", ".cxx", ".cu"),
        *(".cuh", ".f", ".f90", ".go", ".h", ".hh", ".hpp", ".rs", ".swg"),
        *(".build", ".cfg", ".cmake", ".in", ".toml"),
    }
)
_PROJECT_FILES = re.compile(r"(README|LICEN[CS]E|COPYING|NOTICE|AUTHORS|CMakeLists).*|[^.]+")


def _list_source_entries(tree: ProjectTree, directory: str) -> list[ContextEntry]:
    """Return the source files in a package's directory, without ignored files and output of
    tools.

    A build in the directory, or a test run, must not change what is built.
    """
    entries = list_entries(tree, directory)
    packages = {entry.target for entry in entries}
    left_out: list[str] = []
    sources = []
    belongs = _read_rules(tree, directory, entries)
    for entry in entries:
        if not belongs(entry.target.partition("/")[0]):
            continue
        if left_out and entry.target.startswith(left_out[-1]):
            continue
        name = os.path.basename(entry.target)
        is_output = entry.target in _OUTPUTS and f"{entry.target}/__init__.py" not in packages
        if is_output or is_tool_file(name):
            if stat.S_ISDIR(entry.status.st_mode):
                left_out.append(f"{entry.target}/")
            continue
        sources.append(entry)
    return sources


def _read_rules(
    tree: ProjectTree, directory: str, entries: Sequence[ContextEntry]
) -> Callable[[str], bool]:
    """Return whether a name next to a package's metadata belongs to the package.

    What contains no source code belongs to it only if its metadata names it, alone or by its
    suffix: programs write results, logs and weights into a project.
    """
    here = {entry.target for entry in entries}
    texts = [
        tree.read_bytes(f"{directory}/{name}").decode(errors="replace")
        for name in _METADATA_FILES
        if name in here
    ]
    with_code = {
        entry.target.partition("/")[0]
        for entry in entries
        if os.path.splitext(entry.target)[1] in _CODE_SUFFIXES
    }
    directories = {entry.target for entry in entries if stat.S_ISDIR(entry.status.st_mode)}

    def belongs(name: str) -> bool:
        if not texts or name in with_code:
            return True
        if name not in directories and _PROJECT_FILES.fullmatch(name):
            return True
        suffix = os.path.splitext(name)[1]
        return any(name in text or (suffix and f"*{suffix}" in text) for text in texts)

    return belongs


def is_tool_file(name: str) -> bool:
    """Return whether a file or directory with this name is never source."""
    return name in _TOOL_FILES or name.startswith(_TOOL_PREFIXES) or name.endswith(_TOOL_SUFFIXES)


def _resolve_source(tree: ProjectTree, source: str | Path) -> str:
    path = tree.real_path(source)
    if path is None:
        raise ResolveError(f"{source} not found in the project")
    return str(path)


def digest_source(project: Path, source: str | Path, digests: FileDigests | None = None) -> str:
    """Return ``sha256:…`` of a package's directory, or of its archive or wheel."""
    with ProjectTree(project) as tree:
        real = _resolve_source(tree, source)
        status = tree.status(real)
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        entries = _list_source_entries(tree, real) if is_directory else list_entries(tree, real)
        return digest_entries(tree, entries, digests)


def copy_source(project: Path, source: str | Path, place: Path) -> str:
    """Copy a package's source files to ``place``; return their digest (hexadecimal)."""
    place.mkdir(parents=True)

    def put(entry: ContextEntry) -> Path:
        target = place / entry.target
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    with ProjectTree(project) as tree:
        entries = _list_source_entries(tree, _resolve_source(tree, source))
        return copy_entries(tree, entries, put).removeprefix("sha256:")
