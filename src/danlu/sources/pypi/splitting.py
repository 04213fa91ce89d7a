"""One tree for each wheel out of a prefix that many were installed into by one call of uv.

A tree holds what belongs to its wheel and nothing that depends on the company it was installed
in: the host's interpreter, uv's own notes and the times of files are replaced by fixed ones.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from danlu.environment.names import normalised
from danlu.errors import OutsideError, ResolveError
from danlu.graph import WHEEL_TIME, Scheme
from danlu.sources.pypi import record
from danlu.sources.pypi.record import Row
from danlu.util.files import remove_tree

__all__ = [
    "Distribution",
    "Incomplete",
    "collision",
    "finish_tree",
    "installed",
    "split",
    "take_all",
]

#: Files of a ``.dist-info`` that say how, by whom and from where it was installed.
_NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}


class Incomplete(Exception):
    """Files that no RECORD lists lie among those of ``names``: install these one at a time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution in a prefix: its normalised name, its site and its files by path.

    ``info`` and the keys of ``rows`` are paths relative to the prefix; ``site`` is the directory
    its RECORD is relative to.
    """

    name: str
    version: str
    site: str
    info: str
    rows: Mapping[str, Row] = field(repr=False)


def _sites(prefix: Path) -> Iterator[str]:
    """Directories of packages below a prefix, as the schemes of CPythons name them."""
    for top in ("lib", "lib64", "local/lib", "local/lib64"):
        root = prefix / top
        if root.is_symlink() or not root.is_dir():
            continue
        for version in sorted(os.listdir(root)):
            for name in ("site-packages", "dist-packages"):
                if (root / version / name).is_dir():
                    yield f"{top}/{version}/{name}"


def installed(prefix: Path) -> tuple[Distribution, ...]:
    """The distributions in a prefix, by name.

    Raises :class:`OutsideError` where a RECORD names a path outside the prefix.
    """
    found = []
    for site in _sites(prefix):
        for entry in sorted(os.listdir(prefix / site)):
            if entry.endswith(".dist-info"):
                found.append(_distribution(prefix, site, entry))
    return tuple(sorted(found, key=lambda one: one.name))


def _distribution(prefix: Path, site: str, entry: str) -> Distribution:
    name, _, version = entry.removesuffix(".dist-info").rpartition("-")
    info = f"{site}/{entry}"
    data = (prefix / info / "RECORD").read_bytes()
    rows: dict[str, Row] = {}
    for row in record.read_record(data.decode("utf-8", "surrogateescape"), owner=name):
        path = posixpath.normpath(posixpath.join(site, row.path))
        if path.startswith(("../", "/")) or path in (".", ".."):
            raise OutsideError(
                f"the wheel of {name} {version} is damaged: its RECORD names {row.path!r}, "
                "a path outside the environment"
            )
        rows[path] = row
    return Distribution(normalised(name), version, site, info, rows)


def _unit(path: str, site: str) -> str:
    """What is moved as a whole: an entry of site-packages, or one file elsewhere."""
    if path.startswith(site + "/"):
        return site + "/" + path[len(site) + 1 :].partition("/")[0]
    return path


def _target(path: str, site: str, scheme: Scheme) -> str:
    """Where ``path`` of the prefix goes: relative to the tree's root."""
    prefix = scheme.prefix.strip("/")
    if path == site or path.startswith(site + "/"):
        return f"{prefix}/{scheme.site_packages}{path[len(site) :]}"
    path = re.sub(r"^include/site/python[\d.]+/", f"include/site/python{_minor(scheme)}/", path)
    return f"{prefix}/{path.removeprefix('local/')}"


def _minor(scheme: Scheme) -> str:
    return ".".join(scheme.version.split(".")[:2])


def _skipped(path: str, info: str) -> bool:
    """Whether a file is left out of the tree, or written anew."""
    note = path.startswith(info + "/") and path[len(info) + 1 :] in _NOTES
    return note or "__pycache__" in path.split("/")


def split(
    prefix: Path, distributions: Sequence[Distribution], scheme: Scheme, trees: Mapping[str, Path]
) -> None:
    """Move each distribution's files from ``prefix`` into its tree (by name), by rename.

    The trees exist and are empty. Scripts keep uv's first line until :func:`finish_tree`. Raises
    :class:`ResolveError` where two own one path with different bytes, :class:`Incomplete` where
    files are in no RECORD.
    """
    owners: dict[str, list[Distribution]] = {}
    for one in distributions:
        for unit in dict.fromkeys(_unit(path, one.site) for path in one.rows):
            owners.setdefault(unit, []).append(one)
    moved: dict[str, tuple[Distribution, Path]] = {}
    for unit, sharing in owners.items():
        source = prefix / unit
        if len(sharing) == 1 and not source.is_symlink():
            target = trees[sharing[0].name] / _target(unit, sharing[0].site, scheme)
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(source):
                os.rename(source, target)
            continue
        for one in sharing:
            for path in one.rows:
                if _unit(path, one.site) == unit and not _skipped(path, one.info):
                    _move_file(prefix, path, one, scheme, trees, moved)
    _nothing_left(prefix, owners)


def _move_file(
    prefix: Path,
    path: str,
    one: Distribution,
    scheme: Scheme,
    trees: Mapping[str, Path],
    moved: dict[str, tuple[Distribution, Path]],
) -> None:
    """Move a file of a directory that several distributions share; a shared file goes to each."""
    target = trees[one.name] / _target(path, one.site, scheme)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path in moved:
        other, place = moved[path]
        if other.rows[path].hash != one.rows[path].hash:
            raise collision(other.name, one.name, "/" + _target(path, one.site, scheme))
        os.link(place, target)
    elif os.path.lexists(prefix / path):
        os.rename(prefix / path, target)
        moved[path] = (one, target)


def take_all(prefix: Path, one: Distribution, scheme: Scheme, tree: Path) -> None:
    """Move everything in ``prefix`` into ``tree``: the distribution was installed alone."""
    for root, directories, files in os.walk(prefix):
        directories[:] = [name for name in directories if name != "__pycache__"]
        relative = os.path.relpath(root, prefix)
        for file in files:
            path = posixpath.normpath(posixpath.join(relative, file))
            if path != ".lock":
                target = tree / _target(path, one.site, scheme)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(prefix / path, target)


def collision(first: str, second: str, path: str) -> ResolveError:
    """The error that two packages own ``path`` with different bytes."""
    return ResolveError(
        f"the packages {first} and {second} both have {path}, with different content",
        hint="which one would win is chance; leave one of the two out",
    )


def _nothing_left(prefix: Path, owners: Mapping[str, Sequence[Distribution]]) -> None:
    left: set[str] = set()
    everyone = [one for some in owners.values() for one in some]
    for root, _, files in os.walk(prefix):
        relative = os.path.relpath(root, prefix)
        for file in files:
            path = posixpath.normpath(posixpath.join(relative, file))
            if path == ".lock" or "__pycache__" in path.split("/"):
                continue
            shared = [one for unit, some in owners.items() if path.startswith(unit) for one in some]
            if not any(_skipped(path, one.info) for one in shared):
                left.update(one.name for one in shared or everyone)
    if left:
        raise Incomplete(left)


def finish_tree(
    tree: Path,
    one: Distribution,
    scheme: Scheme,
    hosts: Sequence[str],
    *,
    direct_url: bytes | None = None,
) -> None:
    """Make a tree what its wheel says and nothing more: scripts, notes, RECORD, modes, times.

    A file that no RECORD lists and that is here all the same lay among the wheel's own: it gets
    its row.
    """
    info = tree / _target(one.info, one.site, scheme)
    rows = {
        _target(path, one.site, scheme): row
        for path, row in one.rows.items()
        if not _skipped(path, one.info)
    }
    for note in _NOTES:
        (info / note).unlink(missing_ok=True)
    _write_scripts(tree, info, one, scheme, hosts, rows)
    _write(info / "INSTALLER", record.INSTALLER, tree, rows)
    if direct_url is not None:
        _write(info / "direct_url.json", direct_url, tree, rows)
    site = f"{scheme.prefix.strip('/')}/{scheme.site_packages}"
    listed, directories = _complete(tree, one, rows)
    lines = [Row(posixpath.relpath(path, site), row.hash, row.size) for path, row in listed.items()]
    lines.append(Row(posixpath.relpath(os.path.relpath(info / "RECORD", tree), site)))
    _write(info / "RECORD", record.write_record(lines), tree, rows)
    os.utime(info / "RECORD", (WHEEL_TIME, WHEEL_TIME))
    _fix_directories(directories)


def _write(path: Path, data: bytes, tree: Path, rows: dict[str, Row], mode: int = 0o644) -> None:
    """Write a file of ours as a new inode, and its row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    name = os.path.relpath(path, tree)
    rows[name] = Row(name, record.record_hash(data), str(len(data)))


def _write_scripts(
    tree: Path,
    info: Path,
    one: Distribution,
    scheme: Scheme,
    hosts: Sequence[str],
    rows: dict[str, Row],
) -> None:
    """Our own launchers for entry points, and our interpreter in scripts that had ``#!python``."""
    directory = tree / scheme.prefix.strip("/") / "bin"
    entry_points = info / "entry_points.txt"
    launchers: dict[str, tuple[str, str]] = {}
    if entry_points.is_file():
        text = entry_points.read_text(encoding="utf-8", errors="replace")
        launchers = record.console_scripts(text, owner=one.name)
    for name, (module, function) in launchers.items():
        data = record.launcher(module, function, scheme.interpreter)
        _write(directory / name, data, tree, rows, 0o755)
    for path in [path for path in rows if (tree / path).parent == directory]:
        script = tree / path
        if script.name not in launchers and script.is_file():
            data = record.new_header(script.read_bytes(), hosts, scheme.interpreter) or b""
            if data:
                _write(script, data, tree, rows, 0o755)


def _complete(
    tree: Path, one: Distribution, rows: Mapping[str, Row]
) -> tuple[dict[str, Row], list[str]]:
    """The rows of exactly the files that are there, and all directories, parents first.

    Files get their one mode and time on the way: a tree is walked once.
    """
    found: dict[str, Row] = {}
    root = str(tree)
    directories = [root]
    for directory in directories:
        with os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if entry.name == "__pycache__":
                        remove_tree(Path(entry.path))
                    else:
                        directories.append(entry.path)
                elif stat.S_ISREG(status.st_mode):
                    name = entry.path[len(root) + 1 :]
                    found[name] = _row(entry.path, name, rows)
                    _fix_file(entry.path, status)
                else:
                    raise OutsideError(f"the wheel of {one.name} holds the link {entry.name!r}")
    return found, directories


def _row(path: str, name: str, rows: Mapping[str, Row]) -> Row:
    row = rows.get(name)
    if row is None or not row.hash:
        data = Path(path).read_bytes()
        row = Row(name, record.record_hash(data), str(len(data)))
    return row


def _fix_file(path: str, status: os.stat_result) -> None:
    """One rule for modes, one time; a wrong mode is mended on a copy.

    The inode belongs to uv's cache too: its other name must not change its mode with ours.
    """
    wanted = 0o755 if status.st_mode & 0o111 else 0o644
    if stat.S_IMODE(status.st_mode) != wanted:
        _own_copy(path, wanted)
        os.utime(path, (WHEEL_TIME, WHEEL_TIME))
    elif status.st_mtime_ns != WHEEL_TIME * 10**9:
        os.utime(path, (WHEEL_TIME, WHEEL_TIME))


def _fix_directories(directories: Sequence[str]) -> None:
    for directory in reversed(directories):
        if stat.S_IMODE(os.stat(directory).st_mode) != 0o755:
            os.chmod(directory, 0o755)
        os.utime(directory, (WHEEL_TIME, WHEEL_TIME))


def _own_copy(path: str, mode: int) -> None:
    data = Path(path).read_bytes()
    os.unlink(path)
    Path(path).write_bytes(data)
    os.chmod(path, mode)
