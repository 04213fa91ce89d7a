"""Collect the code of a job: a script with the local modules it imports, for remote replicas."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from danlu.project.local_modules import (
    SearchPathEntry,
    classify_search_path,
    find_imports,
    find_local_modules,
    parse_source,
)
from danlu.submission.framework_detection import find_module
from danlu.submission.function_transport import RemoteCall


def collect_script_code(script: Path, directory: Path) -> dict[str, Path]:
    """Return the files that a script needs, by their paths in the working directory.

    ``directory`` is the working directory and contains the script. Modules are searched next to the
    script, where Python looks first. Raises :class:`~danlu.errors.UsageError` for modules that are
    too large or unreadable.
    """
    root, script = directory.absolute(), script.absolute()
    found = {str(script.relative_to(root)): script}
    tree = parse_source(script.read_bytes()) if script.suffix == ".py" else None
    if tree is None:
        return found
    parent = script.parent.relative_to(root)
    local = find_local_modules(find_imports(tree), [SearchPathEntry(script.parent, is_local=True)])
    return found | {str(parent / path): file for path, file in local.files.items()}


def collect_module_code(name: str, directory: Path) -> Mapping[str, Path]:
    """Return the files that a local module needs, by their paths below ``directory``.

    Packages are sent completely. Empty if the module is not in ``directory``: then it must be
    installed where the job runs. Raises as :func:`collect_script_code`
    does.
    """
    root = directory.absolute()
    file = find_module(name, root)
    if file is None:
        return {}
    wanted = [name, f"{name}.__main__"] if file.name == "__main__.py" else [name]
    return find_local_modules(wanted, [SearchPathEntry(root, is_local=True)], needed=wanted).files


def collect_call_code(
    call: RemoteCall, project: Path, mentioned: Iterable[str]
) -> Mapping[str, Path]:
    """Return the local modules in ``project`` that a call needs, by relative path.

    These are the modules its pickle refers to, the function's module, and all that they import.
    """
    root = project.resolve()
    places = [
        entry
        for entry in classify_search_path(
            [path or os.getcwd() for path in sys.path], place=root, elsewhere=True
        )
        if not entry.is_local or entry.path.resolve().is_relative_to(root)
    ]
    wanted = [*mentioned, *_function_modules(call)]
    return find_local_modules(wanted, places, elsewhere=True).files


def _function_modules(call: RemoteCall) -> Iterable[str]:
    """Return the function's module, or the imports of the running script if it is defined there."""
    module = getattr(call.target, "__module__", "") or ""
    if module != "__main__":
        return [module] if module else []
    file = getattr(sys.modules["__main__"], "__file__", None)
    tree = parse_source(Path(file).read_bytes()) if file and Path(file).is_file() else None
    return [] if tree is None else find_imports(tree)
