"""What Python files import, and which distributions that means."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import stat
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from danlu.commands.init.names import IMPORTS, SYSTEM_OF_IMPORT
from danlu.errors import UsageError

__all__ = ["Found", "installed_names", "python_files", "read_notebook", "scan"]

#: Directories whose files are not the project's own program.
_SKIPPED = {
    "__pycache__", "build", "dist", "docs", "env", "node_modules", "site-packages", "test",
    "tests", "venv", "wandb", "mlruns",
}  # fmt: skip

_MOST_FILES = 2000
_LARGEST = 4 << 20

_PIP = re.compile(r"^\s*[!%]\s*(?:python\S*\s+-m\s+)?pip3?\s+install\s+(.+)$")
_CONDA = re.compile(r"^\s*[!%]\s*(?:conda|mamba)\s+install\s+(.+)$")
_APT = re.compile(r"^\s*!\s*(?:sudo\s+)?apt(?:-get)?\s+(?:-\S+\s+)*install\s+(.+)$")


@dataclass
class Found:
    """What files say: imports (name -> first file), what notebooks install, what was unreadable."""

    imports: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def python_files(directory: Path) -> Iterator[Path]:
    """The project's own ``*.py`` and ``*.ipynb`` files, sorted, at most some thousands."""
    count = 0
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(
            one
            for one in directories
            if one not in _SKIPPED
            and not one.startswith(".")
            and not (Path(root) / one / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith((".py", ".ipynb")) and name != "build.py":
                count += 1
                if count > _MOST_FILES:
                    return
                yield Path(root) / name


def scan(paths: Iterator[Path] | list[Path], directory: Path) -> Found:
    """What the files ``paths`` of the project ``directory`` import from outside of it."""
    found = Found()
    listed = list(paths)
    local = _local_modules(directory, listed)
    for path in listed:
        shown = os.path.relpath(path, directory)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                continue
            text = read_notebook(path, found) if path.suffix == ".ipynb" else _read(path)
            _collect(text, shown, local, found)
        except (OSError, SyntaxError, ValueError, RecursionError, UsageError):
            found.unreadable.append(shown)
    for name in found.imports:
        found.optional.pop(name, None)
    return found


def read_notebook(path: Path, found: Found) -> str:
    """The code of a notebook's cells as one program; its install lines go to ``found``.

    Raises :class:`UsageError` where it is no notebook.
    """
    try:
        cells = json.loads(_read(path))["cells"]
        sources = [cell["source"] for cell in cells if cell.get("cell_type") == "code"]
        texts = ["".join(one) if isinstance(one, list) else str(one) for one in sources]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path.name} is not a notebook of version 4 or later") from error
    return "\n".join(_plain_python(text, found) for text in texts)


def installed_names(directory: Path) -> dict[str, str]:
    """Import name -> distribution, of the virtual environment that the project is worked on in.

    That is ``VIRTUAL_ENV``, ``CONDA_PREFIX`` or a ``.venv`` or ``venv`` of the project.
    """
    from importlib.metadata import distributions

    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    roots = [Path(active)] if active else []
    roots += [directory / ".venv", directory / "venv"]
    places = [str(one) for root in roots for one in root.glob("lib/python3*/site-packages")]
    names: dict[str, str] = {}
    for one in distributions(path=places):
        title = one.metadata["Name"]
        for module in _modules_of(one.read_text("top_level.txt"), one.files or ()):
            if title:
                names.setdefault(module, title)
    return names


def distribution_of(name: str, installed: dict[str, str]) -> str:
    """The distribution that gives the module ``name``."""
    return IMPORTS.get(name) or installed.get(name) or re.sub(r"[_.]", "-", name)


def system_of(name: str) -> str:
    """The system package that the module ``name`` needs beside its wheel, or nothing."""
    return SYSTEM_OF_IMPORT.get(name, "")


def _modules_of(top_level: str | None, files: object) -> set[str]:
    if top_level:
        return {line.strip() for line in top_level.splitlines() if line.strip()}
    parts = [str(one).split("/") for one in files]  # type: ignore[attr-defined]
    packages = {one[0] for one in parts if len(one) > 1 and one[-1].endswith((".py", ".so"))}
    modules = {one[0][:-3] for one in parts if len(one) == 1 and one[0].endswith(".py")}
    return {one for one in packages | modules if one.isidentifier()}


def _read(path: Path) -> str:
    import tokenize

    with tokenize.open(path) as file:
        return file.read()


def _local_modules(directory: Path, paths: list[Path]) -> set[str]:
    """Names that the project's own files and directories answer for."""
    names = {path.stem for path in paths}
    for path in paths:
        for parent in path.relative_to(directory).parents if path.is_relative_to(directory) else ():
            if parent.name:
                names.add(parent.name)
    for one in (directory, directory / "src"):
        if one.is_dir():
            names.update(child.name for child in one.iterdir() if child.is_dir())
            names.update(child.stem for child in one.glob("*.py"))
    return names


def _plain_python(text: str, found: Found) -> str:
    """A cell without magics; ``%%bash`` and other cells that are not Python give nothing."""
    if text.lstrip().startswith("%%") and not re.match(r"\s*%%(time|timeit|capture)", text):
        return ""
    lines = []
    for line in text.splitlines():
        if not line.lstrip().startswith(("%", "!", "?")) and not line.rstrip().endswith("?"):
            lines.append(line)
            continue
        _note_install(line, found)
        lines.append(line[: len(line) - len(line.lstrip())] + "pass")
    return "\n".join(lines)


def _note_install(line: str, found: Found) -> None:
    for pattern, kept in ((_PIP, found.packages), (_CONDA, found.packages), (_APT, found.system)):
        match = pattern.match(line)
        if match is None:
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError:
            continue
        kept += [one for one in words if re.match(r"[A-Za-z0-9]", one) and "/" not in one]


def _collect(text: str, shown: str, local: set[str], found: Found) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    for name, optional in _imported(tree.body, optional=False):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in local or top in ("__future__", "danlu"):
            continue
        kept = found.optional if optional else found.imports
        kept.setdefault(_with_namespace(name), shown)


def _with_namespace(name: str) -> str:
    """``google.cloud.storage`` names a distribution only with its parts; others by their first."""
    parts = name.split(".")
    if parts[0] == "google" and len(parts) > 1:
        return ".".join(parts[: 3 if parts[1] == "cloud" else 2])
    return parts[0]


def _imported(body: list[ast.stmt], *, optional: bool) -> Iterator[tuple[str, bool]]:
    for node in body:
        match node:
            case ast.Import():
                yield from ((one.name, optional) for one in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                if module in ("google", "google.cloud"):
                    yield from ((f"{module}.{one.name}", optional) for one in node.names)
                else:
                    yield module, optional
            case ast.Try():
                guarded = optional or any(_catches_import(one) for one in node.handlers)
                yield from _imported(node.body, optional=guarded)
                for handler in node.handlers:
                    yield from _imported(handler.body, optional=True)
                yield from _imported([*node.orelse, *node.finalbody], optional=optional)
            case ast.If() if _is_type_checking(node.test):
                yield from _imported(node.orelse, optional=optional)
            case _:
                for name in ("body", "orelse"):
                    inner = getattr(node, name, None)
                    if isinstance(inner, list):
                        yield from _imported(inner, optional=optional)


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _is_type_checking(test: ast.expr) -> bool:
    return any(
        getattr(one, "id", getattr(one, "attr", "")) == "TYPE_CHECKING" for one in ast.walk(test)
    )
