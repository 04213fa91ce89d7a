"""Send a function to the replicas of a job, and receive its return values or exceptions.

What is sent is a directory (:attr:`danlu.jobs.types.Submission.files`): the program, a pickle of
the call, and for containers the modules that their image may lack.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from danlu import replica_runtime
from danlu.errors import UsageError
from danlu.jobs.report import WORKSPACE
from danlu.jobs.results import (
    describe_error,
    find_causing_error,
    open_error,
    open_values,
    rebuild_error,
)
from danlu.jobs.types import JobResult
from danlu.replica_runtime import call_entry, report
from danlu.replica_runtime.pickles import list_modules
from danlu.util.config import TRANSFER_LIMIT
from danlu.util.human import format_size

LABEL = "call"
"""The label of a job that calls a function: the function's name."""

#: The modules of the package that the programs of replicas import.
_RUNTIME_MODULES = (
    "__init__",
    "cell_entry",
    "display",
    "encoding",
    "exit",
    "matplotlib_backend",
    "pickles",
    "results",
    "termination",
)

_SITE_DIRECTORIES = frozenset(("site-packages", "dist-packages"))


class RemoteCall(msgspec.Struct, frozen=True):
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    @property
    def target(self) -> Any:
        """The function or class behind a partial or a callable object."""
        found: Any = self.function
        while isinstance(found, partial):
            found = found.func
        return found if hasattr(found, "__qualname__") else type(found)

    @property
    def name(self) -> str:
        """The qualified name of the target."""
        return str(self.target.__qualname__)


class RaisedError(msgspec.Struct, frozen=True):
    """An exception of a replica: one line, the traceback, and itself if it could be rebuilt."""

    replica: str
    reason: str
    text: str
    error: BaseException | None = None


# -- sending
# ----------------------------------------------------------------------------------------


def call_command(python: str = "python") -> tuple[str, ...]:
    """Return the command that makes the packed call on a replica."""
    return (python, f"$(DANLU_FILES)/{call_entry.PROGRAM}")


def pack_call(
    call: RemoteCall,
    directory: Path,
    *,
    project: Path | None = None,
    seen: bool = True,
    limit: int = TRANSFER_LIMIT,
) -> tuple[str, ...]:
    """Write what replicas need for the call to ``directory``; return the modules it refers to.

    Replicas are containers of ``project``, or without one processes of this Python. Containers
    mount the project if it is ``seen``, and otherwise get its local modules. With cloudpickle
    anything can be sent; without it only functions, by name and to processes, and those of a script
    by importing the script again, as multiprocessing does. ``limit`` is the maximum size of the
    call and of each replica's results. Raises :class:`UsageError` if the call cannot be sent.
    """
    main, data = _pickle_call(call, contained=project is not None)
    _check_limit(call, len(data), limit)
    order = {
        "python": call_entry.minor_version(),
        "contained": project is not None,
        "main": main,
        "path": _module_path(project, seen=seen),
        "limit": limit,
    }
    (directory / call_entry.PAYLOAD).write_bytes(data)
    (directory / call_entry.MANIFEST).write_text(json.dumps(order), encoding="utf-8")
    shutil.copyfile(call_entry.__file__, directory / call_entry.PROGRAM)
    copy_runtime_package(directory)
    if project is not None:
        _add_modules(directory)
    return () if seen else tuple(list_modules(data))


def copy_runtime_package(directory: Path) -> None:
    """Copy the package ``danlu_replica``, which programs of replicas import, to ``directory``."""
    source = Path(replica_runtime.__file__).parent
    (directory / "danlu_replica").mkdir()
    for name in _RUNTIME_MODULES:
        shutil.copyfile(source / f"{name}.py", directory / "danlu_replica" / f"{name}.py")


def _module_path(project: Path | None, *, seen: bool) -> list[str]:
    """Return the module search path of replicas."""
    if project is None:
        return [entry or os.getcwd() for entry in sys.path]
    return _container_paths(project) if seen else [WORKSPACE]


def _pickle_call(call: RemoteCall, *, contained: bool) -> tuple[str, bytes]:
    """Return the script to import first, if any, and the pickled call."""
    pickler = _import_cloudpickle()
    parts = (call.function, call.args, dict(call.kwargs))
    if pickler is None and contained:
        raise UsageError(
            f"{call.name} cannot be sent to containers without cloudpickle", hint=_pickle_hint(None)
        )
    main = "" if pickler is not None else _main_script(call)
    try:
        return main, pickle.dumps(parts) if pickler is None else pickler.dumps(parts)
    except Exception as error:
        raise UsageError(
            f"{call.name} cannot be sent to the replicas: {error}", hint=_pickle_hint(pickler)
        ) from error


def _check_limit(call: RemoteCall, size: int, limit: int) -> None:
    if size > limit:
        raise UsageError(
            f"{call.name} and its arguments take {format_size(size)}; the limit is"
            f" {format_size(limit)}",
            hint="raise `transfer_limit` (DANLU_TRANSFER_LIMIT), or read the data from a file",
        )


def _import_cloudpickle() -> ModuleType | None:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _main_script(call: RemoteCall) -> str:
    """Return the script to import for the function; empty if its module can be imported by name."""
    if getattr(call.target, "__module__", "") != "__main__":
        return ""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{call.name} is defined interactively, so replicas cannot import it",
            hint=_pickle_hint(None),
        )
    return os.path.abspath(str(file))


def _container_paths(project: Path) -> list[str]:
    """Return the search path inside containers, which see only the project."""
    root = project.resolve()
    places = [Path(entry or os.getcwd()).resolve() for entry in sys.path]
    return [
        f"{WORKSPACE}/{place.relative_to(root)}"
        for place in places
        if place.is_relative_to(root) and place.is_dir() and not _is_site_directory(place)
    ]


def _is_site_directory(place: Path) -> bool:
    """Return whether a directory belongs to this Python, whose venv may be in the project."""
    if not _SITE_DIRECTORIES.isdisjoint(place.parts):
        return True
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(place.is_relative_to(Path(path).resolve()) for path in standard)


def _add_modules(directory: Path) -> None:
    """Copy what an image may lack: the cloudpickle that wrote the pickle, and danlu.report."""
    pickler = _import_cloudpickle()
    assert pickler is not None
    source = Path(str(pickler.__file__)).parent
    target = directory / call_entry.FIRST / source.name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / call_entry.LAST).mkdir()
    shutil.copyfile(report.__file__, directory / call_entry.LAST / "danlu.py")


def _pickle_hint(pickler: ModuleType | None) -> str:
    if pickler is not None:
        return "pass less data, or open files and connections inside the function"
    return "install cloudpickle to send any function, or define it at the top level of a module"


def importing_script() -> str:
    """Return the script that this replica is importing; empty in any other process."""
    return os.environ.get(call_entry.IMPORTING, "")


# -- receiving -------------------------------------------------------------------------------------


def is_call(result: JobResult) -> bool:
    """Return whether the job called a function."""
    return LABEL in result.view.labels


def leader_value(result: JobResult, *, trusted: bool = False) -> Any:
    """Return the leader's value; with MPI, whose launcher computes nothing, worker 0's."""
    if result.value is not None:
        return _open_call_value(result.value, result, trusted)
    return next(iter(replica_values(result, trusted=trusted).values()), None)


def replica_values(result: JobResult, *, trusted: bool = False) -> dict[str, Any]:
    """Return the value of each replica by name, in the job's order.

    ``trusted`` also loads pickles from untrusted environments.
    """
    names = [str(replica.id) for replica in result.view.replicas]
    return {
        name: _open_call_value(result.values[name], result, trusted)
        for name in names
        if name in result.values
    }


def first_error(result: JobResult, *, first: str = "", trusted: bool = False) -> RaisedError | None:
    """Return the exception that was raised first on any replica, if one was reported.

    ``first`` is the replica that ended first. Others may have raised earlier: a replica can fail
    because of another and end sooner. But if it raised nothing (it was killed), no exception
    explains the failure.
    """
    trusted = trusted or result.trusted
    _share_main()
    reports = {}
    for name, data in result.raised.items():
        report = open_error(data)
        if report is not None:
            reports[name] = report
    if not reports or (first and first not in reports):
        return None
    name = find_causing_error(reports)
    error = rebuild_error(reports[name], trusted=trusted, compare=False)
    return RaisedError(name, describe_error(reports[name]), reports[name].text, error)


def _open_call_value(data: bytes, result: JobResult, trusted: bool) -> Any:
    _share_main()
    trusted = trusted or result.trusted
    found = open_values(data, trusted=trusted, compare=False, job=result.view.name)
    return found.get(call_entry.VALUE_NAME)


def _share_main() -> None:
    """Make the classes of the user's script those of this process, for pickle."""
    sys.modules.setdefault(call_entry.MAIN, sys.modules["__main__"])
