"""Which framework a script trains with, by what it imports; nothing of it is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from danlu.errors import UsageError

__all__ = ["Guess", "guess"]

#: Modules of programs that are started by ``mpirun``, whatever they compute with.
_LAUNCHED = {"mpi4py": "mpi", "horovod": "mpi"}

_COMPUTING = {
    "accelerate": "pytorch",
    "lightning": "pytorch",
    "pytorch_lightning": "pytorch",
    "torch": "pytorch",
    "transformers": "pytorch",
    "tensorflow": "tensorflow",
    "flax": "jax",
    "jax": "jax",
    "paddle": "paddle",
    "xgboost": "xgboost",
    "mxnet": "mxnet",
}

#: Files of the project beyond the script that are looked at.
_MOST_FILES = 50
_LARGEST = 4 << 20


class Guess(msgspec.Struct, frozen=True):
    """The name of a framework, and the import it was taken from."""

    framework: str
    module: str
    file: str


def guess(script: Path) -> Guess:
    """The framework that ``script`` imports, itself or through modules beside it.

    Raises :class:`UsageError` where it imports none, or several that exclude each other.
    """
    for names in (_LAUNCHED, _COMPUTING):
        found = _first(script, names)
        if len(found) > 1:
            listed = " and ".join(sorted(one.module for one in found.values()))
            raise UsageError(
                f"{script.name} imports {listed}: which of them trains?",
                hint=f"say it: --framework {sorted(found)[0]}",
            )
        if found:
            return next(iter(found.values()))
    raise UsageError(
        f"no framework is imported by {script.name}",
        hint="say which it is: --framework pytorch, tensorflow, jax, xgboost, paddle, mxnet or mpi",
    )


def _first(script: Path, names: dict[str, str]) -> dict[str, Guess]:
    """The guesses of the first file, in the order of reading, that imports any of ``names``."""
    for path in _files(script):
        found: dict[str, Guess] = {}
        for module in _imports(path):
            if module in names:
                found.setdefault(names[module], Guess(names[module], module, path.name))
        if found:
            return found
    return {}


def _files(script: Path) -> Iterator[Path]:
    """The script, then the modules beside it that it imports, breadth first."""
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop(0)
        yield path
        for name in _imports(path):
            for near in (script.parent / f"{name}.py", script.parent / name / "__init__.py"):
                if near not in seen and near.is_file():
                    seen.add(near)
                    waiting.append(near)


def _imports(path: Path) -> list[str]:
    """The top-level names that a file imports, in order; none where it is not readable Python."""
    import warnings

    try:
        if path.stat().st_size > _LARGEST:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module.partition(".")[0])
    return list(dict.fromkeys(names))
