"""Pickle values within a size limit, and check what a pickle needs of the Python that reads it.

Both the submitter and the replicas use this module.
"""

import importlib
import io
import pickle
import re
import sys
from typing import Any

#: The newest protocol that every Python since 3.8 reads, so that it does not depend on the writer.
PROTOCOL = min(5, pickle.HIGHEST_PROTOCOL)

#: A pickle over its limit is written on, to report its size, up to this multiple of the limit.
_MEASURE_FACTOR = 16

#: How many parts of a value to try when looking for the one that cannot be pickled.
_MAX_TRIES = 300

TOO_LARGE_HINT = (
    "raise `transfer_limit` (DANLU_TRANSFER_LIMIT) before the job is started, or write it to a file"
    " in the working directory or in a volume"
)

#: Modules whose pickles every Python reads: if a pickle mentions no others, versions do not matter.
PORTABLE_MODULES = frozenset(
    ("builtins", "_codecs", "collections", "copyreg", "datetime", "decimal", "fractions", "uuid")
)


class TooLarge(Exception):
    """A pickle exceeds its limit; ``size`` in bytes, ``complete`` if that is the whole pickle."""

    def __init__(self, size: int, complete: bool) -> None:
        super().__init__(size, complete)
        self.size = size
        self.complete = complete


class NotSent(Exception):
    """A value cannot be sent: why, and what to do instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
        self.name = ""


class _LimitedBuffer:
    """A file that keeps what is written up to a limit, and counts what comes after."""

    def __init__(self, limit: int, max_counted: float) -> None:
        self.limit = limit
        self.max_counted = max_counted
        self.size = 0
        self.parts: list[bytes] = []

    def write(self, data: "bytes | bytearray | memoryview") -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self.size <= self.limit:
            self.parts.append(bytes(data))
        elif self.size > self.max_counted:
            raise TooLarge(self.size, False)
        return count


def pickle_value(name: str, value: object, *, max_bytes: int, room: int) -> "dict[str, Any]":
    """Pickle a value: ``data``, the ``modules`` it mentions and the versions of ``libraries``.

    ``max_bytes`` is the limit for all values together, ``room`` what is left of it. Raises
    :class:`NotSent`.
    """
    try:
        data = dump_value(value, min(max_bytes, room))
    except TooLarge as error:
        raise NotSent(_format_size_error(error, max_bytes, room), TOO_LARGE_HINT) from None
    except Exception as error:
        if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
            raise NotSent("it is nested too deeply", TOO_LARGE_HINT) from None
        raise NotSent(_pickling_reason(name, value, error), _pickling_hint(error)) from error
    modules = list_modules(data)
    if "__main__" in modules:
        raise NotSent(
            "it contains a class or function that was not imported from a module",
            "install cloudpickle, which supports them, or define it in a module",
        )
    return {"data": data, "modules": modules, "libraries": find_libraries(modules)}


def check_size(size: int, max_bytes: int, room: int) -> None:
    """Raise :class:`NotSent` if ``size`` exceeds the limit or what is left of it."""
    if size > min(max_bytes, room):
        message = _format_size_error(TooLarge(size, True), max_bytes, room)
        raise NotSent(message, TOO_LARGE_HINT)


def _format_size_error(error: TooLarge, max_bytes: int, room: int) -> str:
    size = f"{'' if error.complete else 'more than '}{format_size(error.size)}"
    limit = f"the limit is {format_size(max_bytes)}"
    if room < max_bytes:
        return f"it takes {size}, but only {format_size(room)} are left ({limit} in total)"
    return f"it takes {size}, but {limit}"


def format_size(size: int) -> str:
    """Format a size: ``64.0 MiB``, ``1.2 KiB``."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _pickling_reason(name: str, value: object, error: Exception) -> str:
    part = find_unpicklable(value, name)
    return f"{error or type(error).__name__}" + (f" ({part})" if part != name else "")


def _pickling_hint(error: Exception) -> str:
    if "generator" in str(error):
        return "convert it to a list"
    return "send plain values and create it in the cell"


def dump_value(value: object, limit: int) -> bytes:
    """Pickle a value into at most ``limit`` bytes, with cloudpickle if it is installed.

    Raises :class:`TooLarge`, and whatever pickling raises.
    """
    buffer = _LimitedBuffer(limit, limit * _MEASURE_FACTOR)
    _dump_pickle(value, buffer)
    if buffer.size > limit:
        raise TooLarge(buffer.size, True)
    return b"".join(buffer.parts)


def _dump_pickle(value: object, buffer: _LimitedBuffer) -> None:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        pickle.Pickler(buffer, PROTOCOL).dump(value)
    else:
        cloudpickle.Pickler(buffer, protocol=PROTOCOL).dump(value)


def find_unpicklable(value: object, name: str) -> str:
    """Return the smallest part of a value that cannot be pickled: ``x['a'].lock``."""
    tries = 0
    while True:
        for label, part in _labelled_parts(value):
            tries += 1
            if tries > _MAX_TRIES:
                return name
            if not _can_pickle(part):
                name, value = name + label, part
                break
        else:
            return name


def _can_pickle(value: object) -> bool:
    try:
        _dump_pickle(value, _LimitedBuffer(0, float("inf")))
    except Exception:
        return False
    return True


def _labelled_parts(value: object) -> "list[tuple[str, object]]":
    if isinstance(value, dict):
        return [(f"[{repr(key)[:80]}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, type):
        return [(f".{key}", part) for key, part in attributes.items()]
    return []


# -- modules that a pickle mentions ---------------------------------------------------------------


class _AcceptAnything(type):
    """The metaclass of :class:`_Placeholder`: calls and changes do nothing and return the class."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls

    def __setitem__(cls, key: object, value: object) -> None:
        pass

    def __setstate__(cls, state: object) -> None:
        pass

    def append(cls, item: object) -> None:
        pass

    extend = add = append


class _Placeholder(metaclass=_AcceptAnything):
    def __new__(cls, *args: object, **kwargs: object) -> "type[_Placeholder]":  # type: ignore[misc]
        return cls


class _ModuleCollector(pickle.Unpickler):
    """Reads a pickle at C speed without importing or creating anything in it."""

    def __init__(self, file: "object") -> None:
        super().__init__(file)  # type: ignore[arg-type]
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        self.modules.add(module)
        if (module.partition(".")[0], name) in (
            ("cloudpickle", "subimport"),
            ("importlib", "import_module"),
        ):
            return self._collect_import
        return _Placeholder

    def _collect_import(self, name: str, *rest: object) -> object:
        self.modules.add(name)
        return _Placeholder


def list_modules(data: bytes) -> "list[str]":
    """Return the modules that unpickling would import, sorted, without importing them."""
    collector = _ModuleCollector(io.BytesIO(data))
    collector.load()
    return sorted(collector.modules)


# -- versions -------------------------------------------------------------------------------------


def python_version() -> str:
    """Return the version of this Python: ``3.11.7``."""
    return ".".join(map(str, sys.version_info[:3]))


def find_libraries(modules: "list[str]") -> "dict[str, list[str]]":
    """Return the distribution and version of each third-party library, by top-level module."""
    libraries = {}
    for name in sorted({module.partition(".")[0] for module in modules}):
        if name == "__main__" or name in getattr(sys, "stdlib_module_names", PORTABLE_MODULES):
            continue
        distribution = _find_distribution(name)
        if distribution is not None:
            libraries[name] = distribution
    return libraries


def _find_distribution(module: str) -> "list[str] | None":
    """Return the distribution that a top-level module belongs to, and its version."""
    try:
        from importlib import metadata  # new in Python 3.8
    except ImportError:
        return _imported_version(module)
    try:
        return [module, metadata.version(module)]
    except metadata.PackageNotFoundError:
        pass
    for distribution in metadata.distributions():
        if module in _top_level_names(distribution):
            return [str(distribution.metadata["Name"]), str(distribution.version)]
    return _imported_version(module)


def _top_level_names(distribution: "object") -> "set[str]":
    read = distribution.read_text  # type: ignore[attr-defined]
    top_level = read("top_level.txt") or ""
    if top_level.strip():
        return set(top_level.split())
    return {line.partition("/")[0] for line in (read("RECORD") or "").splitlines() if "/" in line}


def _imported_version(module: str) -> "list[str] | None":
    """Return the ``__version__`` of a module if it is already imported."""
    version = getattr(sys.modules.get(module), "__version__", None)
    return [module, version] if isinstance(version, str) else None


def find_version_conflicts(
    writer: str, modules: "list[str]", versions: "dict[str, list[str]]"
) -> "list[tuple[str, str, str]]":
    """Return what keeps this Python from reading a pickle: ``(name, written with, found here)``.

    ``writer`` is the Python version that wrote it, ``modules`` what it mentions, ``versions`` its
    libraries. Versions conflict if they differ in one of their first two numbers.
    """
    conflicts = []
    is_portable = set(modules) <= PORTABLE_MODULES and sys.version_info >= (3, 8)
    if not is_portable and not _same_minor_version(writer, python_version()):
        conflicts.append(("Python", writer, python_version()))
    for module, (distribution, version) in sorted(versions.items()):
        here = _version_here(module, distribution)
        if here != version and not (here and _same_minor_version(version, here)):
            conflicts.append((distribution, version, here or "not installed"))
    return conflicts


def _version_here(module: str, distribution: str) -> str:
    """Return the version of a library; empty if it is not installed."""
    try:
        from importlib import metadata  # new in Python 3.8

        return str(metadata.version(distribution))
    except ImportError:  # includes PackageNotFoundError
        pass
    known = _find_distribution(module)
    if known is None:
        try:
            __import__(module)
        except Exception:
            return ""
        known = _imported_version(module) or [module, "unknown"]
    return known[1]


def _same_minor_version(version: str, other: str) -> bool:
    numbers = [re.findall(r"\d+", text.partition("+")[0])[:2] for text in (version, other)]
    return numbers[0] == numbers[1] if numbers[0] else version == other
