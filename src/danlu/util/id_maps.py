"""Ids in user namespaces: id maps (user_namespaces(7)) and subordinate ids (subuid(5)).

Files in a rootless store belong to subordinate ids. Outside the user namespace that maps them they
appear to have other owners, which says nothing about the files.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import msgspec

from danlu.util.decoding import decode_json
from danlu.util.files import write_atomic

#: Lies next to the trees whose owners it explains.
_FILE_NAME = "ids"

#: The kernel's overflow uid: how an unmapped owner appears. It is also the id of `nobody`.
UNMAPPED_ID = 65534

#: Where the subordinate ids of accounts are configured.
SUBID_FILES = ("/etc/subuid", "/etc/subgid")
# As useradd gives (login.defs(5), SUB_UID_COUNT).
_RANGE_SIZE = 65536
_FIRST_SUBID = 100000

#: First id inside, first id outside, count.
_Range = tuple[int, int, int]


class IdMaps(msgspec.Struct, frozen=True):
    """How user and group ids inside a user namespace map to ids outside."""

    users: tuple[_Range, ...]
    groups: tuple[_Range, ...]

    def covers(self, other: IdMaps) -> bool:
        """Return whether every id that ``other`` maps is mapped here, and to the same id."""
        return _map_covers(self.users, other.users) and _map_covers(self.groups, other.groups)

    @property
    def has_nobody(self) -> bool:
        """Whether :data:`UNMAPPED_ID` is an ordinary mapped id here, for users and groups."""
        return all(
            any(start <= UNMAPPED_ID < start + count for start, _, count in ranges)
            for ranges in (self.users, self.groups)
        )


def _map_covers(ranges: tuple[_Range, ...], wanted: tuple[_Range, ...]) -> bool:
    return all(
        any(
            start <= inside
            and inside + count <= start + length
            and inside - start == outside - first
            for start, first, length in ranges
        )
        for inside, outside, count in wanted
    )


def read_id_maps() -> IdMaps:
    """Return the maps of this process."""
    return IdMaps(_read_map("uid_map"), _read_map("gid_map"))


def _read_map(name: str) -> tuple[_Range, ...]:
    lines = Path(f"/proc/self/{name}").read_text().splitlines()
    return tuple((int(a), int(b), int(c)) for a, b, c in (line.split() for line in lines))


def load_recorded_id_maps(directory: Path) -> IdMaps | None:
    """Return the maps under which trees in ``directory`` were created, or None if unknown."""
    try:
        return decode_json((directory / _FILE_NAME).read_bytes(), IdMaps)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def record_id_maps(directory: Path, maps: IdMaps) -> None:
    """Record the maps under which trees in ``directory`` are created from now on."""
    write_atomic(directory / _FILE_NAME, msgspec.json.encode(maps), sync=False)


def account_name() -> str:
    """Return the account's name or number; root of a user namespace is its creator."""
    uid = os.geteuid()
    inside, outside, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    uid = outside + uid - inside if inside <= uid < inside + count else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def suggest_usermod(name: str) -> str:
    """Return the command line that gives ``name`` a range of ids that no other account has."""
    start = _FIRST_SUBID
    for file in SUBID_FILES:
        try:
            fields = [line.strip().split(":") for line in Path(file).read_text().splitlines()]
        except OSError:
            continue
        ends = [
            int(field[1]) + int(field[2])
            for field in fields
            if len(field) == 3 and field[1].isdigit() and field[2].isdigit()
        ]
        start = max([start, *ends])
    last = start + _RANGE_SIZE - 1
    return (
        f"sudo usermod --add-subuids {start}-{last} --add-subgids {start}-{last} {name}"
        f"  (the line {name}:{start}:{_RANGE_SIZE} in /etc/subuid and in /etc/subgid)"
    )
