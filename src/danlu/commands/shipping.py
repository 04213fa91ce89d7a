"""Send a function to the replicas of a job, and take back its values or what it raised.

What is sent is a directory (:attr:`danlu.jobs.types.Submission.files`): the program, a pickle of
the function, and for containers the modules that it may need and does not find there.
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
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.commands.jobreport import WORKSPACE
from danlu.errors import UsageError
from danlu.guest import call as guest
from danlu.guest import deliver, leave, report
from danlu.guest.versions import mentioned

if TYPE_CHECKING:
    from danlu.jobs.types import Result

__all__ = [
    "LABEL",
    "Call",
    "Raised",
    "importing",
    "is_call",
    "pack",
    "program",
    "raised",
    "value",
    "values",
]

LABEL = "call"
"""The label of a job that calls a function: what that is called."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))


class Call(msgspec.Struct, frozen=True):
    """A function that is to be called, and with what."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """What the function is called."""
        return str(getattr(self.function, "__qualname__", self.function))


class Raised(msgspec.Struct, frozen=True):
    """What the function raised on a replica: its traceback, and itself where it could be sent."""

    replica: str
    text: str
    error: BaseException | None = None


# -- there ----------------------------------------------------------------------------------------


def program(python: str = "python") -> tuple[str, ...]:
    """The words that call on a replica what was packed."""
    return (python, f"$(DANLU_FILES)/{guest.PROGRAM}")


def pack(
    call: Call, directory: Path, *, project: Path | None = None, seen: bool = True
) -> tuple[str, ...]:
    """Write to ``directory`` what replicas need to make the call; the modules that it mentions.

    They are containers of ``project``, or without one processes of this very Python. Containers
    see the project, or where it is not ``seen`` the local modules of it in their place. Where
    cloudpickle is installed everything can be sent; without it functions are sent to processes, by
    their names, and those of a script by importing the script once more, as multiprocessing does.
    Raises :class:`UsageError` for what cannot be sent so.
    """
    main, data = _pickled(call, contained=project is not None)
    order = {
        "python": guest.python(),
        "contained": project is not None,
        "main": main,
        "path": _path(project, seen=seen),
    }
    (directory / guest.PAYLOAD).write_bytes(data)
    (directory / guest.ORDER).write_text(json.dumps(order), encoding="utf-8")
    shutil.copyfile(guest.__file__, directory / guest.PROGRAM)
    shutil.copyfile(leave.__file__, directory / "danlu_leave.py")
    shutil.copyfile(deliver.__file__, directory / "danlu_deliver.py")
    if project is not None:
        _add_modules(directory)
    return () if seen else tuple(mentioned(data))


def _path(project: Path | None, *, seen: bool) -> list[str]:
    """Where replicas find modules."""
    if project is None:
        return [one or os.getcwd() for one in sys.path]
    return _inside(project) if seen else [WORKSPACE]


def _pickled(call: Call, *, contained: bool) -> tuple[str, bytes]:
    """The script that is to be imported first, if any, and the call itself."""
    pickler = _cloudpickle()
    parts = (call.function, call.args, dict(call.kwargs))
    if pickler is None and contained:
        raise UsageError(
            f"{call.name} cannot be sent to containers without cloudpickle", hint=_hint(None)
        )
    main = "" if pickler is not None else _main_of(call)
    try:
        return main, pickle.dumps(parts) if pickler is None else pickler.dumps(parts)
    except Exception as error:
        raise UsageError(
            f"{call.name} cannot be sent to the replicas: {error}", hint=_hint(pickler)
        ) from error


def _cloudpickle() -> ModuleType | None:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _main_of(call: Call) -> str:
    """The script to import for the function, empty where its module can be imported by name."""
    if getattr(call.function, "__module__", "") != "__main__":
        return ""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{call.name} is defined in a notebook or at a prompt, where nothing can be"
            " imported from",
            hint=_hint(None),
        )
    return os.path.abspath(str(file))


def _inside(project: Path) -> list[str]:
    """Where modules are found, as far as containers see it: the project is all they do."""
    root = project.resolve()
    places = [Path(one or os.getcwd()).resolve() for one in sys.path]
    return [
        f"{WORKSPACE}/{one.relative_to(root)}"
        for one in places
        if one.is_relative_to(root) and one.is_dir() and not _is_installed(one)
    ]


def _is_installed(place: Path) -> bool:
    """Whether it belongs to this Python, which may lie in the project; an image has its own."""
    if not _INSTALLED.isdisjoint(place.parts):
        return True
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(place.is_relative_to(Path(one).resolve()) for one in standard)


def _add_modules(directory: Path) -> None:
    """What a pickle needs and an image need not have: cloudpickle as it wrote it, our report."""
    pickler = _cloudpickle()
    assert pickler is not None
    source = Path(str(pickler.__file__)).parent
    target = directory / guest.FIRST / source.name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / guest.LAST).mkdir()
    shutil.copyfile(report.__file__, directory / guest.LAST / "danlu.py")


def _hint(pickler: ModuleType | None) -> str:
    if pickler is not None:
        return "give it less, or let it open what it needs itself"
    return "`pip install cloudpickle` sends any function; else write it at the top of a module"


def importing() -> str:
    """The script that this process, a replica, is importing; empty in any other process."""
    return os.environ.get(guest.IMPORTING, "")


# -- and back -------------------------------------------------------------------------------------


def is_call(result: Result) -> bool:
    """Whether a job calls a function that was packed here."""
    return LABEL in result.view.labels


def value(result: Result) -> Any:
    """What the leader returned; under MPI, whose launcher computes nothing, the first worker."""
    if result.value is not None:
        return _opened(result.value)
    return next(iter(values(result).values()), None)


def values(result: Result) -> dict[str, Any]:
    """What each replica returned, by its name, in the job's order."""
    names = [str(one.id) for one in result.view.replicas]
    return {name: _opened(result.values[name]) for name in names if name in result.values}


def raised(result: Result, *, first: str = "") -> Raised | None:
    """What was raised first on any replica, if anything is known of it.

    That ``first`` was seen to end first says less, for others fail because of it and may end
    sooner; but where it raised nothing (it was killed) nothing else counts.
    """
    told = {name: pickle.loads(data) for name, data in result.raised.items()}
    if not told or (first and first not in told):
        return None
    name = min(told, key=lambda one: (told[one]["time"], one))
    return Raised(name, told[name]["text"], _revived(told[name]["error"]))


def _opened(data: bytes) -> Any:
    """Classes of the user's script are those of this process."""
    sys.modules.setdefault(guest.MAIN, sys.modules["__main__"])
    try:
        return pickle.loads(data)
    except Exception as error:
        raise UsageError(
            f"what the function returned cannot be read here: {error}",
            hint="return plain numbers, texts and lists, or write a file",
        ) from error


def _revived(data: bytes) -> BaseException | None:
    try:
        error = _opened(data)
    except UsageError:
        return None
    return error if isinstance(error, BaseException) else None
