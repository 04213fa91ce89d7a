"""Verify unpacked wheels: against their RECORD, or against what they contained when last
verified.

uv checks an archive's hash once, when it unpacks it, and trusts its cache from then on. So danlu
keeps a note of each verified wheel and compares later copies out of that cache with it. Source:
PyPA specification "Binary distribution format": installation fails if a file's hash does not match
RECORD.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from danlu.graph.ops import InstallScheme
from danlu.sources.pypi import dist_info
from danlu.sources.pypi.dist_info import RecordRow
from danlu.sources.pypi.split_wheels import (
    InstalledDistribution,
    is_written_by_installer,
    target_path,
)
from danlu.util.decoding import decode_json
from danlu.util.files import write_atomic

#: Replaces this machine's interpreter, which uv writes into a wheel's scripts.
_ANY_INTERPRETER = "python"

#: The specification requires SHA-256 or better; weaker hashes are ignored.
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})


class WheelContents(msgspec.Struct, frozen=True):
    """What an unpacked wheel contains.

    ``digest`` covers path, content and executable bit of each file, and is the same for every
    scheme. ``mismatched`` files differ from their hash in RECORD; ``unverified`` are not listed in
    RECORD, listed without a hash, or listed but missing.
    """

    digest: str
    mismatched: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def examine_tree(
    tree: Path, distribution: InstalledDistribution, scheme: InstallScheme, hosts: Sequence[str]
) -> WheelContents:
    """Read all files of a wheel's tree before it is finished; ``hosts`` as for
    :func:`finish_tree`.

    Raises :class:`InvalidWheel` if RECORD or the entry points cannot be parsed.
    """
    rows = {
        target_path(path, distribution.site, scheme): row
        for path, row in distribution.rows.items()
        if not is_written_by_installer(path, distribution.info)
    }
    launchers = _launcher_paths(tree, distribution, scheme)
    rows = {path: row for path, row in rows.items() if path not in launchers}
    left_out = target_path(distribution.info, distribution.site, scheme)
    files: list[str] = []
    wrong: list[str] = []
    unproved: list[str] = []
    for path in _walk_files(tree):
        if path in launchers or is_written_by_installer(path, left_out):
            continue
        data_hash, proof = _examine_file(tree / path, rows.pop(path, None), hosts)
        executable = os.lstat(tree / path).st_mode & 0o111 != 0
        files.append(f"{_wheel_path(path, scheme)}\0{data_hash}\0{executable:d}")
        if proof is None:
            unproved.append(path)
        elif not proof:
            wrong.append(path)
    unproved += rows
    text = "\n".join(sorted(files)).encode("utf-8", "surrogateescape")
    return WheelContents(
        hashlib.sha256(text).hexdigest(), tuple(sorted(wrong)), tuple(sorted(unproved))
    )


def _launcher_paths(
    tree: Path, distribution: InstalledDistribution, scheme: InstallScheme
) -> frozenset[str]:
    """Return the launchers of entry points, which the installer writes, not the wheel."""
    entry_points = (
        tree / target_path(distribution.info, distribution.site, scheme) / "entry_points.txt"
    )
    if not entry_points.is_file():
        return frozenset()
    text = entry_points.read_text(encoding="utf-8", errors="replace")
    directory = f"{scheme.prefix.strip('/')}/bin"
    return frozenset(
        f"{directory}/{name}" for name in dist_info.parse_scripts(text, owner=distribution.name)
    )


def _walk_files(tree: Path) -> Iterator[str]:
    """Yield regular files, relative to the tree (:func:`finish_tree` rejects symlinks)."""
    cut = len(str(tree)) + 1
    for root, _, names in os.walk(tree):
        for name in names:
            path = f"{root}/{name}"
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path[cut:]


def _examine_file(
    path: Path, row: RecordRow | None, hosts: Sequence[str]
) -> tuple[str, bool | None]:
    """Return the sha256, and whether it matches RECORD; None if RECORD has no hash."""
    algorithm, _, expected = (row.hash if row else "").partition("=")
    with path.open("rb") as file:
        if file.read(2) == b"#!":
            script = dist_info.replace_shebang(b"#!" + file.read(), hosts, _ANY_INTERPRETER)
            if script is not None:
                # uv has written this line, and the hash of the result into RECORD: no evidence.
                return hashlib.sha256(script).hexdigest(), None
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        if not expected or algorithm not in _ALGORITHMS:
            return digest.hexdigest(), None
        actual = digest
        if algorithm != "sha256":
            file.seek(0)
            actual = hashlib.file_digest(file, algorithm)
    encoded = base64.urlsafe_b64encode(actual.digest()).rstrip(b"=").decode()
    return digest.hexdigest(), encoded == expected.rstrip("=")


def _wheel_path(path: str, scheme: InstallScheme) -> str:
    """Return ``path`` of a tree in a form that is the same for every scheme."""
    prefix = f"{scheme.prefix.strip('/')}/"
    names: Mapping[str, str] = {
        f"{prefix}{scheme.site_packages}/": "site-packages/",
        f"{prefix}include/site/": "include/",
        prefix: "data/",
    }
    for start, name in names.items():
        if path.startswith(start):
            rest = path[len(start) :]
            return name + (rest.partition("/")[2] if name == "include/" else rest)
    return path


class WheelNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a verified wheel contains, and the layers that were made from it.

    ``contents`` is :attr:`WheelContents.digest`, empty if unknown; ``layers`` maps the parameters
    of a layer to its diff ID.
    """

    contents: str = ""
    layers: Mapping[str, str] = {}


class WheelNoteCache:
    """The notes on the wheels in a uv cache, one file per archive, named by its sha256."""

    def __init__(self, cache: Path) -> None:
        self._directory = cache / "fetched"

    def read(self, sha256: str) -> WheelNote:
        """Return the note; an empty one if there is none or it cannot be read."""
        try:
            return decode_json(self._path(sha256).read_bytes(), WheelNote)
        except (OSError, msgspec.DecodeError):
            return WheelNote()

    def write(self, sha256: str, note: WheelNote) -> None:
        """Replace the note. If a power failure loses it, the wheel is only verified again."""
        data = msgspec.json.encode(note, order="sorted")
        write_atomic(self._path(sha256), data, sync=False)

    def _path(self, sha256: str) -> Path:
        return self._directory / sha256.removeprefix("sha256:")
