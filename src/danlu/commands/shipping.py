"""Send a function to the replicas of a job, and take back its value or what it raised."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from danlu.errors import UsageError
from danlu.guest import call as guest

__all__ = ["Raised", "importing", "opened", "pack", "program", "raised"]


class Raised(msgspec.Struct, frozen=True):
    """What the function raised on a replica: its traceback, and itself where it could be sent."""

    text: str
    error: BaseException | None = None


def program(directory: Path, python: str) -> tuple[str, ...]:
    """The words that call what was packed into ``directory``."""
    return (python, os.path.abspath(guest.__file__), str(directory))


def pack(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    directory: Path,
) -> None:
    """Write a function and its arguments to ``directory``.

    Where cloudpickle is installed everything can be sent; without it functions are sent by their
    names, and those of a script by importing the script once more, as multiprocessing does.
    Raises :class:`UsageError` for what cannot be sent so.
    """
    pickler = _cloudpickle()
    call = (function, args, dict(kwargs))
    main = ""
    try:
        if pickler is not None:
            data = cast("bytes", pickler.dumps(call))
        else:
            main = _main_of(function)
            data = pickle.dumps(call)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{_name(function)} cannot be sent to the replicas: {error}", hint=_hint(pickler)
        ) from error
    header = pickle.dumps({"path": [one or os.getcwd() for one in sys.path], "main": main})
    (directory / guest.PAYLOAD).write_bytes(header + data)


def _cloudpickle() -> ModuleType | None:
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    return cast("ModuleType", cloudpickle)


def _main_of(function: Callable[..., Any]) -> str:
    """The script to import for ``function``, empty where its module can be imported by name."""
    if getattr(function, "__module__", "") != "__main__":
        return ""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{_name(function)} is defined in a notebook or at a prompt, where nothing can be"
            " imported from",
            hint=_hint(None),
        )
    return os.path.abspath(str(file))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _hint(pickler: ModuleType | None) -> str:
    if pickler is not None:
        return "give it less, or let it open what it needs itself"
    return "`pip install cloudpickle` sends any function; else write it at the top of a module"


def importing() -> str:
    """The script that this process, a replica, is importing; empty in any other process."""
    return os.environ.get(guest.IMPORTING, "")


def raised(directory: Path) -> Raised | None:
    """What the function raised first on any replica."""
    try:
        names = sorted(os.listdir(directory / guest.RAISED))
    except FileNotFoundError:
        return None
    for name in names:
        if not name.endswith(".new"):
            told = pickle.loads((directory / guest.RAISED / name).read_bytes())
            return Raised(told["text"], _revived(told["error"]))
    return None


def opened(data: bytes) -> Any:
    """A value that a replica pickled; classes of the user's script are those of this process."""
    sys.modules.setdefault(guest.MAIN, sys.modules["__main__"])
    return pickle.loads(data)


def _revived(data: bytes) -> BaseException | None:
    try:
        error = opened(data)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
