"""Write the directory that is sent with a cell: its code, local modules and pickled variables."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from danlu import replica_runtime
from danlu.jobs.backends import is_remote
from danlu.notebook.cell_code import check_return_names, check_sweep_names
from danlu.notebook.types import Cell, CellOptions, SentVariable, VariableStore
from danlu.project.local_modules import (
    LocalModules,
    classify_search_path,
    find_imports,
    find_local_modules,
    read_content,
)
from danlu.replica_runtime.cell_entry import MAIN_MODULE
from danlu.submission.function_transport import copy_runtime_package
from danlu.util.config import TRANSFER_LIMIT

#: The program as a job's command names it (:class:`danlu.jobs.types.Submission`).
PROGRAM = "$(DANLU_FILES)/run.py"

_MAX_FILE_NAME = 100


class CellBundle(msgspec.Struct, frozen=True):
    """A directory to send with a job, the names of the user's data in it, and its size in bytes."""

    directory: Path
    modules: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    size: int = 0


def replica_command(python: str = "python") -> tuple[str, ...]:
    """Return the command that runs a cell on a replica; ``--NAME VALUE`` may follow."""
    return (python, PROGRAM)


def write_bundle(
    cell: Cell,
    values: VariableStore,
    *,
    target: Path,
    place: Path,
    path: Sequence[str],
    limit: int = TRANSFER_LIMIT,
    working_directory: str = "",
) -> CellBundle:
    """Fill the empty or missing directory ``target`` with what a replica needs to run ``cell``.

    ``place`` is the notebook's directory, ``path`` the kernel's ``sys.path``. Replicas change to
    ``working_directory`` if it is given. The output is deterministic. Raises
    :class:`SyntaxError`, and :class:`UsageError` for variables and modules that do not exist, are
    too large or cannot be sent.
    """
    options = cell.options
    tree = _parse_code(cell)
    check_sweep_names(options.sweep)
    if tree.body:
        check_return_names(tree, options)
    variables = values.write_pickles(sorted(set(options.send)), target / "values", limit=limit)
    wanted = [*find_imports(tree), *(name for variable in variables for name in variable.modules)]
    with TemporaryDirectory(prefix="danlu-modules-") as fetched:
        values.write_modules([*options.modules, *wanted], Path(fetched), limit=limit)
        modules = _find_modules(wanted, options, place=place, path=[*path, fetched])
        _copy_modules(modules, target / "modules")
    code = f"cell/{_file_name(options.name)}.py"
    _write_file(target / code, cell.code.encode())
    _copy_replica_runtime(target)
    manifest = _cell_manifest(options, variables, modules, limit=limit, code=code)
    manifest |= {"python": values.python_version, "directory": working_directory}
    text = json.dumps(manifest, indent=1, sort_keys=True)
    _write_file(target / "manifest.json", f"{text}\n".encode())
    names = tuple(variable.name for variable in variables)
    return CellBundle(target, modules.names, names, _directory_size(target))


def _parse_code(cell: Cell) -> ast.Module:
    """Return the syntax tree; an empty one if only the kernel's Python knows the syntax."""
    try:
        return ast.parse(cell.code, "cell")
    except SyntaxError:
        if not cell.is_checked:
            raise
        return ast.Module([], [])


def _find_modules(
    names: Sequence[str], options: CellOptions, *, place: Path, path: Sequence[str]
) -> LocalModules:
    # Otherwise the job runs in the kernel's own Python, which finds installed packages itself.
    elsewhere = bool(options.image or options.env or is_remote(options.on))
    entries = classify_search_path(path, place=place, elsewhere=elsewhere)
    return find_local_modules(names, entries, needed=options.modules, elsewhere=elsewhere)


def _cell_manifest(
    options: CellOptions,
    variables: Sequence[SentVariable],
    modules: LocalModules,
    *,
    limit: int,
    code: str,
) -> dict[str, Any]:
    """Return the content of ``manifest.json`` (see :mod:`danlu.replica_runtime.cell_entry`)."""
    sent = set(modules.names)
    values = {
        variable.name: {
            "file": f"values/{variable.name}.pickle",
            "modules": [name for name in variable.modules if name.partition(".")[0] not in sent],
            "libraries": {
                name: version for name, version in variable.libraries.items() if name not in sent
            },
        }
        for variable in variables
    }
    return {
        "code": code,
        "values": values,
        "returns": list(options.returns),
        "every": options.every,
        "limit": limit,
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[:_MAX_FILE_NAME].strip(".") or "cell"


def _copy_modules(modules: LocalModules, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, source in modules.files.items():
        _write_file(target / name, read_content(source))
        if source.stat().st_mode & 0o100:
            (target / name).chmod(0o755)


def _copy_replica_runtime(target: Path) -> None:
    source = Path(replica_runtime.__file__).parent
    copy_runtime_package(target)
    shutil.copyfile(source / "main.py", target / "run.py")
    for directory, name, origin in (
        ("spawned_main", MAIN_MODULE, "main"),
        ("fallback", "danlu", "report"),
    ):
        (target / directory).mkdir()
        shutil.copyfile(source / f"{origin}.py", target / directory / f"{name}.py")


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _directory_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
