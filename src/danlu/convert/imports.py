"""Find the imports of Python files and notebooks, and guess their distributions."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from danlu.convert.name_mappings import (
    CONDA_CHANNELS,
    CONDA_TO_PYPI,
    IMPORTS,
    SYSTEM_OF_IMPORT,
)
from danlu.errors import UsageError

#: Directories that do not contain the project's own programs.
_SKIPPED_DIRECTORIES = {
    "__pycache__", "build", "dist", "docs", "env", "node_modules", "site-packages", "test",
    "tests", "venv", "wandb", "mlruns",
}  # fmt: skip

_MAX_FILES = 2000
_MAX_FILE_BYTES = 4 << 20

_PIP_INSTALL = re.compile(r"^\s*[!%]\s*(?:python\S*\s+-m\s+)?pip3?\s+install\s+(.+)$")
_CONDA_INSTALL = re.compile(r"^\s*[!%]\s*(?:conda|mamba)\s+install\s+(.+)$")
_APT_INSTALL = re.compile(r"^\s*!\s*(?:sudo\s+)?apt(?:-get)?\s+(?:-\S+\s+)*install\s+(.+)$")
#: Options that do not change what is installed.
_HARMLESS_OPTION = re.compile(r"-[qUy]+|--(?:quiet|upgrade|yes|user|no-cache-dir|no-input)")
_PLAIN_PACKAGE = re.compile(r"[A-Za-z0-9][\w.+-]*(?:\[[\w,-]+\])?(?:[=<>!~][^/{}$]*)?")


@dataclass
class ScanResult:
    """Imports by the first file that has them, and packages that notebooks install.

    ``untranslated`` are install commands that say more than the names of packages.
    """

    imports: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    untranslated: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def list_python_files(directory: Path) -> Iterator[Path]:
    """Yield the project's own ``*.py`` and ``*.ipynb`` files, sorted."""
    count = 0
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(
            name
            for name in directories
            if name not in _SKIPPED_DIRECTORIES
            and not name.startswith(".")
            and not (Path(root) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith((".py", ".ipynb")) and name != "build.py":
                count += 1
                if count > _MAX_FILES:
                    return
                yield Path(root) / name


def scan_imports(paths: Iterator[Path] | list[Path], directory: Path) -> ScanResult:
    """Scan ``paths`` for imports of modules outside the project ``directory``."""
    result = ScanResult()
    listed = list(paths)
    local = _list_local_modules(directory, listed)
    for path in listed:
        shown = os.path.relpath(path, directory)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
                continue
            text = read_notebook(path, result) if path.suffix == ".ipynb" else _read_source(path)
            _collect_imports(text, shown, local, result)
        except (OSError, SyntaxError, ValueError, RecursionError, UsageError):
            result.unreadable.append(shown)
    for name in result.imports:
        result.optional.pop(name, None)
    return result


def read_notebook(path: Path, result: ScanResult) -> str:
    """Return the code of a notebook's cells; packages that it installs are added to ``result``.

    Raises :class:`UsageError` for an invalid notebook.
    """
    try:
        cells = json.loads(_read_source(path))["cells"]
        sources = [cell["source"] for cell in cells if cell.get("cell_type") == "code"]
        texts = ["".join(source) if isinstance(source, list) else str(source) for source in sources]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path.name} is not a notebook of version 4 or later") from error
    return "\n".join(_strip_magics(text, result) for text in texts)


def map_installed_modules(directory: Path) -> dict[str, str]:
    """Map modules to distributions, for the packages of the project's virtual environment.

    That is ``VIRTUAL_ENV`` or ``CONDA_PREFIX``, else ``.venv`` and ``venv`` of the project.
    """
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    roots = [Path(active)] if active else []
    roots += [directory / ".venv", directory / "venv"]
    places = [str(path) for root in roots for path in root.glob("lib/python3*/site-packages")]
    names: dict[str, str] = {}
    for distribution in distributions(path=places):
        title = distribution.metadata["Name"]
        for module in _list_modules(
            distribution.read_text("top_level.txt"), distribution.files or ()
        ):
            if title:
                names.setdefault(module, title)
    return names


def guess_distribution(name: str, installed: dict[str, str]) -> str:
    """Return the distribution that provides the module ``name``."""
    return IMPORTS.get(name) or installed.get(name) or re.sub(r"[_.]", "-", name)


def guess_system_package(name: str) -> str:
    """Return the system package that the module needs in addition to its wheel, if any."""
    return SYSTEM_OF_IMPORT.get(name, "")


def _list_modules(top_level: str | None, files: object) -> set[str]:
    if top_level:
        return {line.strip() for line in top_level.splitlines() if line.strip()}
    parts = [str(file).split("/") for file in files]  # type: ignore[attr-defined]
    packages = {part[0] for part in parts if len(part) > 1 and part[-1].endswith((".py", ".so"))}
    modules = {part[0][:-3] for part in parts if len(part) == 1 and part[0].endswith(".py")}
    return {module for module in packages | modules if module.isidentifier()}


def _read_source(path: Path) -> str:
    with tokenize.open(path) as file:
        return file.read()


def _list_local_modules(directory: Path, paths: list[Path]) -> set[str]:
    """Return the modules that the project itself provides."""
    names = {path.stem for path in paths}
    for path in paths:
        for parent in path.relative_to(directory).parents if path.is_relative_to(directory) else ():
            if parent.name:
                names.add(parent.name)
    for root in (directory, directory / "src"):
        if root.is_dir():
            names.update(child.name for child in root.iterdir() if child.is_dir())
            names.update(child.stem for child in root.glob("*.py"))
    return names


def _strip_magics(text: str, result: ScanResult) -> str:
    """Return a cell without magics; cells in other languages (``%%bash``) are empty."""
    if text.lstrip().startswith("%%") and not re.match(r"\s*%%(time|timeit|capture)", text):
        return ""
    lines = []
    for line in text.splitlines():
        if not line.lstrip().startswith(("%", "!", "?")) and not line.rstrip().endswith("?"):
            lines.append(line)
            continue
        _collect_install(line, result)
        lines.append(line[: len(line) - len(line.lstrip())] + "pass")
    return "\n".join(lines)


def _collect_install(line: str, result: ScanResult) -> None:
    """Add the packages of an install command, or the command itself if it says more than names."""
    for pattern, kept, names in (
        (_PIP_INSTALL, result.packages, None),
        (_CONDA_INSTALL, result.packages, CONDA_TO_PYPI),
        (_APT_INSTALL, result.system, None),
    ):
        match = pattern.match(line)
        if match is None:
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError:
            words = [match[1]]
        words = [word for word in words if not _HARMLESS_OPTION.fullmatch(word)]
        if names is not None and words[:1] in (["-c"], ["--channel"]) and len(words) > 1:
            words = words[2:] if words[1] in CONDA_CHANNELS else words
        found = [word if names is None else names.get(word.lower(), "-") for word in words]
        if all(map(_PLAIN_PACKAGE.fullmatch, found)):
            kept += found
        else:
            result.untranslated.append(line.strip())


def _collect_imports(text: str, shown: str, local: set[str], result: ScanResult) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    for name, optional in _iter_imports(tree.body, optional=False):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in local or top in ("__future__", "danlu"):
            continue
        kept = result.optional if optional else result.imports
        kept.setdefault(_keep_namespace(name), shown)


def _keep_namespace(name: str) -> str:
    """Return the top-level name, or two or three parts for namespace packages (``google``)."""
    parts = name.split(".")
    if parts[0] == "google" and len(parts) > 1:
        return ".".join(parts[: 3 if parts[1] == "cloud" else 2])
    return parts[0]


def _iter_imports(body: list[ast.stmt], *, optional: bool) -> Iterator[tuple[str, bool]]:
    for node in body:
        match node:
            case ast.Import():
                yield from ((alias.name, optional) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                if module in ("google", "google.cloud"):
                    yield from ((f"{module}.{alias.name}", optional) for alias in node.names)
                else:
                    yield module, optional
            case ast.Try():
                guarded = optional or any(
                    _catches_import_error(handler) for handler in node.handlers
                )
                yield from _iter_imports(node.body, optional=guarded)
                for handler in node.handlers:
                    yield from _iter_imports(handler.body, optional=True)
                yield from _iter_imports([*node.orelse, *node.finalbody], optional=optional)
            case ast.If() if _is_type_checking(node.test):
                yield from _iter_imports(node.orelse, optional=optional)
            case _:
                for name in ("body", "orelse"):
                    inner = getattr(node, name, None)
                    if isinstance(inner, list):
                        yield from _iter_imports(inner, optional=optional)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _is_type_checking(test: ast.expr) -> bool:
    return any(
        getattr(node, "id", getattr(node, "attr", "")) == "TYPE_CHECKING" for node in ast.walk(test)
    )
