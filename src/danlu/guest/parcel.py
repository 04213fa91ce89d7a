"""Pickles that travel between Pythons, written within a limit; why one cannot be.

Both sides load it: the notebook, and the replica (see ``cell.py``), whose Python may be old.
"""

import importlib
import pickle
from typing import Any

from .versions import libraries, mentioned

#: The newest protocol of all Pythons since 3.8, so that it does not depend on who writes.
PROTOCOL = min(5, pickle.HIGHEST_PROTOCOL)

#: A pickle is written to its end for its size, but no further than so many times its limit.
_MEASURED = 16

#: So many parts of a value are tried to find the one that cannot be pickled.
_TRIES = 300


class TooLarge(Exception):
    """A pickle that passes its limit; ``size`` in bytes, ``whole`` where that is all of it."""

    def __init__(self, size: int, whole: bool) -> None:
        super().__init__(size, whole)
        self.size = size
        self.whole = whole


class _Sink:
    """A file that keeps what is written up to a limit, and counts what comes after it."""

    def __init__(self, limit: int, most: float) -> None:
        self.limit = limit
        self.most = most
        self.size = 0
        self.parts: list[bytes] = []

    def write(self, data: "bytes | bytearray | memoryview") -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self.size <= self.limit:
            self.parts.append(bytes(data))
        elif self.size > self.most:
            raise TooLarge(self.size, False)
        return count


class NotSent(Exception):
    """A value that cannot travel: why, and what to do instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def packed(name: str, value: object, *, most: int, room: int) -> "dict[str, Any]":
    """A value pickled (``data``), the ``modules`` it mentions, the versions of its ``libraries``.

    ``most`` bytes are allowed for one value, ``room`` are left for all. Raises :class:`NotSent`.
    """
    try:
        data = dumps(value, min(most, room))
    except TooLarge as error:
        raise NotSent(_too_large(error, most, room), _ELSEWHERE) from None
    except Exception as error:
        if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
            raise NotSent("it is nested too deeply", _ELSEWHERE) from None
        raise NotSent(_reason(name, value, error), _hint(error)) from error
    modules = mentioned(data)
    if "__main__" in modules:
        raise NotSent(
            "a class or function of it was not imported from a module",
            "install cloudpickle, which sends such too, or move it to a module",
        )
    return {"data": data, "modules": modules, "libraries": libraries(modules)}


_ELSEWHERE = "write it to a file that both sides see: in the working directory, or in a volume"


def _too_large(error: TooLarge, most: int, room: int) -> str:
    size = f"{'' if error.whole else 'more than '}{megabytes(error.size)}"
    if room < most:
        return f"it takes {size}, and of what is allowed together {megabytes(room)} are left"
    return f"it takes {size}, and {megabytes(most)} are allowed"


def megabytes(size: int) -> str:
    """A size as it is told: ``64.0 MiB``, ``1.2 KiB``."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _reason(name: str, value: object, error: Exception) -> str:
    part = culprit(value, name)
    return f"{error or type(error).__name__}" + (f" ({part})" if part != name else "")


def _hint(error: Exception) -> str:
    if "generator" in str(error):
        return "make a list of it"
    return "make it where it is used, from plain values that are sent"


def dumps(value: object, limit: int) -> bytes:
    """Pickle a value into ``limit`` bytes, by cloudpickle where it is installed.

    Raises :class:`TooLarge`, and whatever pickling raises.
    """
    sink = _Sink(limit, limit * _MEASURED)
    _dump(value, sink)
    if sink.size > limit:
        raise TooLarge(sink.size, True)
    return b"".join(sink.parts)


def _dump(value: object, sink: _Sink) -> None:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        pickle.Pickler(sink, PROTOCOL).dump(value)
    else:
        cloudpickle.Pickler(sink, protocol=PROTOCOL).dump(value)


def culprit(value: object, name: str) -> str:
    """The smallest part of a value that cannot be pickled, as an expression: ``x['a'].lock``."""
    left = [_TRIES]
    while True:
        for label, part in _parts(value):
            left[0] -= 1
            if left[0] < 0:
                return name
            if not _fits(part):
                name, value = name + label, part
                break
        else:
            return name


def _fits(value: object) -> bool:
    try:
        _dump(value, _Sink(0, float("inf")))
    except Exception:
        return False
    return True


def _parts(value: object) -> "list[tuple[str, object]]":
    if isinstance(value, dict):
        return [(f"[{repr(key)[:80]}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and not isinstance(value, type):
        return [(f".{key}", part) for key, part in own.items()]
    return []
