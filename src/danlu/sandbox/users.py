"""Users by name, as a root file system knows them (passwd(5), group(5))."""

from __future__ import annotations

import msgspec

from danlu.errors import UsageError
from danlu.sandbox.union import Union

__all__ = ["User", "find"]

# What runc takes.
_HIGHEST = 2**31 - 1


class User(msgspec.Struct, frozen=True):
    """Numeric ids, the groups besides, and the home directory."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def find(union: Union, text: str) -> User:
    """The user that ``text`` names: ``name``, ``uid``, ``name:group`` or ``uid:gid``.

    An empty text is root. A number without an entry is taken as it is (OCI image spec,
    config.md, ``User``). Raises :class:`UsageError` for a name that the root does not have.
    """
    name, colon, group = text.partition(":")
    accounts = _lines(union, "/etc/passwd", 7)
    entry = _match(accounts, name or "0")
    if entry is None and not _is_id(name or "0"):
        raise UsageError(f"the image has no user {name}", hint="name one of /etc/passwd, or a uid")
    uid = int(entry[2]) if entry else int(name or "0")
    gid = int(entry[3]) if entry else 0
    home = entry[5] if entry else ("/root" if uid == 0 else "/")
    groups = _lines(union, "/etc/group", 4)
    if colon:
        return User(uid, _group(groups, group), (), home or "/")
    more = {int(line[2]) for line in groups if entry and entry[0] in line[3].split(",")}
    return User(uid, gid, tuple(sorted(more - {gid})), home or "/")


def _group(groups: list[list[str]], name: str) -> int:
    entry = _match(groups, name)
    if entry is not None:
        return int(entry[2])
    if not _is_id(name):
        raise UsageError(f"the image has no group {name}", hint="name one of /etc/group, or a gid")
    return int(name)


def _match(entries: list[list[str]], wanted: str) -> list[str] | None:
    """The entry of that name, else of that number."""
    for column in (0, 2):
        for entry in entries:
            if entry[column] == wanted:
                return entry
    return None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _HIGHEST


def _lines(union: Union, path: str, fields: int) -> list[list[str]]:
    data = union.read(path) or b""
    words = [line.split(":") for line in data.decode(errors="replace").splitlines()]
    return [
        word
        for word in words
        if len(word) == fields and _is_id(word[2]) and (fields == 4 or _is_id(word[3]))
    ]
