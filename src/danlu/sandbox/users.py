"""Look up users by name in a root file system (passwd(5), group(5))."""

from __future__ import annotations

import msgspec

from danlu.errors import UsageError
from danlu.sandbox.layer_view import LayerView

# The largest id that runc accepts.
_MAX_ID = 2**31 - 1


class ResolvedUser(msgspec.Struct, frozen=True):
    """Numeric ids, supplementary groups and the home directory."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def find_user(view: LayerView, text: str) -> ResolvedUser:
    """Return the user that ``text`` names: ``name``, ``uid``, ``name:group`` or ``uid:gid``.

    Empty means root. A number need not have an entry (OCI image spec, config.md, ``User``). Raises
    :class:`UsageError` for a name that the root does not have.
    """
    name, colon, group = text.partition(":")
    accounts = _read_entries(view, "/etc/passwd", 7)
    entry = _match_entry(accounts, name or "0")
    if entry is None and not _is_id(name or "0"):
        raise UsageError(f"the image has no user {name}", hint="name one in /etc/passwd, or a uid")
    uid = int(entry[2]) if entry else int(name or "0")
    gid = int(entry[3]) if entry else 0
    home = entry[5] if entry else ("/root" if uid == 0 else "/")
    groups = _read_entries(view, "/etc/group", 4)
    if colon:
        return ResolvedUser(uid, _find_gid(groups, group), (), home or "/")
    more = {int(line[2]) for line in groups if entry and entry[0] in line[3].split(",")}
    return ResolvedUser(uid, gid, tuple(sorted(more - {gid})), home or "/")


def _find_gid(groups: list[list[str]], name: str) -> int:
    entry = _match_entry(groups, name)
    if entry is not None:
        return int(entry[2])
    if not _is_id(name):
        raise UsageError(f"the image has no group {name}", hint="name one in /etc/group, or a gid")
    return int(name)


def _match_entry(entries: list[list[str]], wanted: str) -> list[str] | None:
    """Return the entry with that name, else with that number."""
    for column in (0, 2):
        for entry in entries:
            if entry[column] == wanted:
                return entry
    return None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MAX_ID


def _read_entries(view: LayerView, path: str, fields: int) -> list[list[str]]:
    data = view.read(path) or b""
    entries = [line.split(":") for line in data.decode(errors="replace").splitlines()]
    return [
        entry
        for entry in entries
        if len(entry) == fields and _is_id(entry[2]) and (fields == 4 or _is_id(entry[3]))
    ]
