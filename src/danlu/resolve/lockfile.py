"""``danlu.lock`` as text: read with every doubt spoken out, written one line a package.

The file is TOML 1.0: ``version``, then a table ``function.NAME`` for each build function. It holds
no download addresses but those of the user's own files.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from danlu.environment.lock import LOCK_VERSION, FunctionLock, Lock, LockedPackage
from danlu.environment.names import normalised, same_version
from danlu.errors import LockError, Span
from danlu.graph import Deb

__all__ = ["HEADER", "read_lock", "write_lock"]

HEADER = (
    "# Written by danlu: what the environment was built from. Commit it; do not edit it.\n"
    "# `danlu lock` brings it up to date, `danlu lock --upgrade` takes newer versions.\n"
)

_HEX = re.compile(r"[0-9a-f]{64}")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_LINE = re.compile(r"at line (\d+)")


def write_lock(lock: Lock) -> str:
    """The text of ``lock``; equal locks give equal texts."""
    parts = [HEADER, f"version = {lock.version}\n"]
    for name in sorted(lock.functions):
        path = f"function.{_key(name)}"
        parts.append(f"\n[{path}]\n" + _table(lock.functions[name], path))
    return "".join(parts)


def _table(value: Any, path: str) -> str:
    """A struct as the lines of a TOML table: plain values, lists of inline tables, tables."""
    lines: list[str] = []
    tables: list[str] = []
    for field, inner in _set_fields(value):
        if isinstance(inner, tuple) and inner and isinstance(inner[0], msgspec.Struct):
            rows = "".join(f"    {_inline(row)},\n" for row in inner)
            lines.append(f"{field} = [\n{rows}]\n")
        elif isinstance(inner, msgspec.Struct) and field == "image":
            lines.append(f"{field} = {_inline(inner)}\n")
        elif isinstance(inner, msgspec.Struct):
            name = f"{path}.{field}"
            tables.append(f"\n[{name}]\n" + _table(inner, name))
        else:
            lines.append(f"{field} = {_plain(inner)}\n")
    return "".join(lines) + "".join(tables)


def _set_fields(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """The fields that are not at their defaults, in their order."""
    defaults = value.__struct_defaults__
    required = len(value.__struct_fields__) - len(defaults)
    for number, name in enumerate(value.__struct_fields__):
        inner = getattr(value, name)
        if number < required or inner != defaults[number - required]:
            yield name, inner


def _inline(row: msgspec.Struct) -> str:
    return "{ " + ", ".join(f"{name} = {_plain(inner)}" for name, inner in _set_fields(row)) + " }"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        # JSON's escapes are those of a TOML basic string (TOML 1.0, "String"), save for DEL.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _plain(name)


def read_lock(text: str, file: str) -> Lock:
    """The lock that ``text`` holds; ``file`` is how messages call it.

    Raises :class:`LockError` with the line, where there is one, for anything that cannot have been
    written by :func:`write_lock`.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        span = Span(file, int(found.group(1))) if found else None
        raise LockError(f"{file} is not TOML: {error}", span=span, hint=_MEND) from error
    version = values.pop("version", None)
    if version != LOCK_VERSION:
        raise LockError(
            f"{file} has version {version!r}, this danlu reads version {LOCK_VERSION}",
            hint="a newer danlu wrote it: upgrade danlu, or remove it and run `danlu lock`",
        )
    sections = values.pop("function", {})
    if values or not isinstance(sections, dict):
        what = next(iter(values), "function")
        raise LockError(f"{file} has an unknown field {what}", hint=_MEND)
    functions = {name: _function(name, value, text, file) for name, value in sections.items()}
    return Lock(functions)


_MEND = "take it from version control again, or remove it and run `danlu lock`"


def _function(name: str, value: Any, text: str, file: str) -> FunctionLock:
    try:
        lock = msgspec.convert(value, FunctionLock)
    except msgspec.ValidationError as error:
        raise LockError(f"{file}: section {name}: {error}", hint=_MEND) from error
    unknown = _unknown(value, FunctionLock)
    if unknown:
        raise LockError(f"{file}: section {name} has an unknown field {unknown}", hint=_MEND)
    for problem, needle in _problems(lock):
        span = _find(text, needle, file)
        raise LockError(f"{file}: {problem}", span=span, hint=_MEND)
    return lock


def _unknown(value: Mapping[str, Any], kind: type[msgspec.Struct]) -> str:
    return next((name for name in value if name not in kind.__struct_fields__), "")


def _problems(lock: FunctionLock) -> Iterable[tuple[str, str]]:
    """What no writer of ours would have written, each with the text to find its line by."""
    debs = (*lock.base.packages, *(lock.system.packages if lock.system else ()))
    for deb in debs:
        yield from _deb_problems(deb)
    for package in lock.packages:
        yield from _package_problems(package)
    for image in (*lock.images, *([lock.base.image] if lock.base.image else [])):
        if not _SHA256.fullmatch(image.digest):
            yield f"image {image.reference} has no valid digest", image.reference
    for http in lock.http:
        if not _HEX.fullmatch(http.sha256):
            yield f"{http.url} has no valid sha256", http.url


def _deb_problems(deb: Deb) -> Iterable[tuple[str, str]]:
    if not _HEX.fullmatch(deb.sha256):
        yield f"system package {deb.name} has no valid sha256", f'"{deb.name}"'
    if ".." in deb.path.split("/") or deb.path.startswith("/"):
        yield f"system package {deb.name} has an impossible path", f'"{deb.name}"'


def _package_problems(package: LockedPackage) -> Iterable[tuple[str, str]]:
    needle = f'"{package.name}"'
    if not _HEX.fullmatch(package.sha256):
        yield f"package {package.name} has no valid sha256", needle
    if "/" in package.file:
        yield f"package {package.name} has an impossible file name", needle
    if package.file.endswith(".whl"):
        name, version = (*package.file.split("-"), "")[:2]
        same = normalised(name) == normalised(package.name)
        if not same or not same_version(version.replace("_", "+"), package.version):
            yield (
                f"package {package.name} {package.version} does not go with its file "
                f"{package.file}",
                needle,
            )


def _find(text: str, needle: str, file: str) -> Span | None:
    for number, line in enumerate(text.splitlines(), 1):
        if needle in line:
            return Span(file, number)
    return None
