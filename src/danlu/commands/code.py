"""A script with the local modules that it imports, for replicas that do not see the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.commands.imports import imported, parsed
from danlu.commands.modules import Entry, entries, find

if TYPE_CHECKING:
    from danlu.commands.shipping import Call

__all__ = ["call_code", "script_code"]


def script_code(script: Path, directory: Path) -> dict[str, Path]:
    """The files that a script needs, by their paths in the working directory.

    ``directory`` is what the working directory shows; the script lies in it. Its modules are
    looked for beside it, where Python looks first. Raises :class:`~danlu.errors.UsageError` for
    modules that are too large or cannot be read.
    """
    root, script = directory.absolute(), script.absolute()
    found = {str(script.relative_to(root)): script}
    tree = parsed(script.read_bytes()) if script.suffix == ".py" else None
    if tree is None:
        return found
    beside = script.parent.relative_to(root)
    local = find(imported(tree), [Entry(script.parent, local=True)])
    return found | {str(beside / path): file for path, file in local.files.items()}


def call_code(call: Call, project: Path, mentioned: Iterable[str]) -> Mapping[str, Path]:
    """The local modules below ``project`` that a call needs, by their paths below one directory.

    Those are what its pickle mentions, what the function's module is, and all that they import.
    """
    root = project.resolve()
    places = [
        one
        for one in entries([path or os.getcwd() for path in sys.path], place=root, elsewhere=True)
        if not one.local or one.path.resolve().is_relative_to(root)
    ]
    wanted = [*mentioned, *_of_function(call)]
    return find(wanted, places, elsewhere=True).files


def _of_function(call: Call) -> Iterable[str]:
    """The function's module; of the script that is run now what it imports."""
    module = getattr(call.function, "__module__", "") or ""
    if module != "__main__":
        return [module] if module else []
    file = getattr(sys.modules["__main__"], "__file__", None)
    tree = parsed(Path(file).read_bytes()) if file and Path(file).is_file() else None
    return [] if tree is None else imported(tree)
