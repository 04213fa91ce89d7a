"""Split a prefix into which uv installed many wheels into one tree per wheel.

A tree contains what belongs to its wheel, and nothing that depends on how or with what it was
installed: the host's interpreter, uv's own metadata and the times of files are replaced by fixed
values.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from danlu.environment.package_names import normalize_name
from danlu.errors import ResolveError
from danlu.graph.ops import WHEEL_TIME, InstallScheme
from danlu.sources.pypi import dist_info
from danlu.sources.pypi.dist_info import InvalidWheel, RecordRow
from danlu.util.files import remove_tree

#: Files in ``.dist-info`` that record how, by what and from where it was installed.
_INSTALLER_FILES = {
    "RECORD",
    "INSTALLER",
    "REQUESTED",
    "direct_url.json",
    "uv_cache.json",
    "uv_build.json",
}


class UnlistedFilesError(Exception):
    """Files not listed in any RECORD are among those of ``names``: install these separately."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)


@dataclass(frozen=True, slots=True)
class InstalledDistribution:
    """A distribution in a prefix: its normalised name, its site-packages directory and its
    files.

    ``info`` and the keys of ``rows`` are paths relative to the prefix; the paths in its RECORD are
    relative to ``site``.
    """

    name: str
    version: str
    site: str
    info: str
    rows: Mapping[str, RecordRow] = field(repr=False)


def _find_sites(prefix: Path) -> Iterator[str]:
    """Yield the site-packages directories in a prefix, for all of CPython's install schemes."""
    for top in ("lib", "lib64", "local/lib", "local/lib64"):
        root = prefix / top
        if root.is_symlink() or not root.is_dir():
            continue
        for version in sorted(os.listdir(root)):
            for name in ("site-packages", "dist-packages"):
                if (root / version / name).is_dir():
                    yield f"{top}/{version}/{name}"


def list_distributions(prefix: Path) -> tuple[InstalledDistribution, ...]:
    """Return the distributions in a prefix, by name.

    Raises :class:`InvalidWheel` if a RECORD contains a path outside the prefix.
    """
    distributions = []
    for site in _find_sites(prefix):
        for entry in sorted(os.listdir(prefix / site)):
            if entry.endswith(".dist-info"):
                distributions.append(_read_distribution(prefix, site, entry))
    return tuple(sorted(distributions, key=lambda distribution: distribution.name))


def _read_distribution(prefix: Path, site: str, entry: str) -> InstalledDistribution:
    name, _, version = entry.removesuffix(".dist-info").rpartition("-")
    info = f"{site}/{entry}"
    data = (prefix / info / "RECORD").read_bytes()
    rows: dict[str, RecordRow] = {}
    for row in dist_info.read_record(data.decode("utf-8", "surrogateescape"), owner=name):
        path = posixpath.normpath(posixpath.join(site, row.path))
        if path.startswith(("../", "/")) or path in (".", ".."):
            raise InvalidWheel(
                name, f"its RECORD contains {row.path!r}, a path outside the environment"
            )
        rows[path] = row
    return InstalledDistribution(normalize_name(name), version, site, info, rows)


def _path_to_move(path: str, site: str) -> str:
    """Return what is moved as a whole: an entry of site-packages, or a single file elsewhere."""
    if path.startswith(site + "/"):
        return site + "/" + path[len(site) + 1 :].partition("/")[0]
    return path


def target_path(path: str, site: str, scheme: InstallScheme) -> str:
    """Return where ``path`` of the prefix goes, relative to the tree's root."""
    prefix = scheme.prefix.strip("/")
    if path == site or path.startswith(site + "/"):
        return f"{prefix}/{scheme.site_packages}{path[len(site) :]}"
    path = re.sub(
        r"^include/site/python[\d.]+/", f"include/site/python{_minor_version(scheme)}/", path
    )
    return f"{prefix}/{path.removeprefix('local/')}"


def _minor_version(scheme: InstallScheme) -> str:
    return ".".join(scheme.version.split(".")[:2])


def is_written_by_installer(path: str, info: str) -> bool:
    """Return whether a file comes from the installer, not the wheel: dropped or rewritten."""
    note = path.startswith(info + "/") and path[len(info) + 1 :] in _INSTALLER_FILES
    return note or "__pycache__" in path.split("/")


def split_prefix(
    prefix: Path,
    distributions: Sequence[InstalledDistribution],
    scheme: InstallScheme,
    trees: Mapping[str, Path],
) -> None:
    """Move each distribution's files from ``prefix`` into its tree (by name), by rename.

    The trees must exist and be empty. Scripts keep uv's first line until :func:`finish_tree`.
    Raises :class:`ResolveError` if two distributions have one path with different content,
    :class:`UnlistedFilesError` if files are not in any RECORD.
    """
    owners: dict[str, list[InstalledDistribution]] = {}
    for distribution in distributions:
        for unit in dict.fromkeys(
            _path_to_move(path, distribution.site) for path in distribution.rows
        ):
            owners.setdefault(unit, []).append(distribution)
    documents = [
        sharing
        for unit, sharing in owners.items()
        if is_document(f"/{unit}") and len({owner.rows[unit].hash for owner in sharing}) > 1
    ]
    if documents:  # only one of these files is there
        raise UnlistedFilesError(owner.name for sharing in documents for owner in sharing)
    moved: dict[str, tuple[InstalledDistribution, Path]] = {}
    for unit, sharing in owners.items():
        source = prefix / unit
        if len(sharing) == 1 and not source.is_symlink():
            target = trees[sharing[0].name] / target_path(unit, sharing[0].site, scheme)
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(source):
                os.rename(source, target)
            continue
        for distribution in sharing:
            for path in distribution.rows:
                if _path_to_move(path, distribution.site) == unit and not is_written_by_installer(
                    path, distribution.info
                ):
                    _move_file(prefix, path, distribution, scheme, trees, moved)
    _check_nothing_left(prefix, owners)


def _move_file(
    prefix: Path,
    path: str,
    distribution: InstalledDistribution,
    scheme: InstallScheme,
    trees: Mapping[str, Path],
    moved: dict[str, tuple[InstalledDistribution, Path]],
) -> None:
    """Move a file of a shared directory; a file of several distributions goes to each."""
    target = trees[distribution.name] / target_path(path, distribution.site, scheme)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path in moved:
        other, place = moved[path]
        if other.rows[path].hash != distribution.rows[path].hash:
            absolute = "/" + target_path(path, distribution.site, scheme)
            raise collision_error(other.name, distribution.name, absolute)
        os.link(place, target)
    elif os.path.lexists(prefix / path):
        os.rename(prefix / path, target)
        moved[path] = (distribution, target)


def take_all(
    prefix: Path, distribution: InstalledDistribution, scheme: InstallScheme, tree: Path
) -> None:
    """Move everything in ``prefix`` into ``tree``, for a distribution that was installed alone."""
    for root, directories, files in os.walk(prefix):
        directories[:] = [name for name in directories if name != "__pycache__"]
        relative = os.path.relpath(root, prefix)
        for file in files:
            path = posixpath.normpath(posixpath.join(relative, file))
            if path != ".lock":
                target = tree / target_path(path, distribution.site, scheme)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(prefix / path, target)


def is_document(path: str) -> bool:
    """Return whether a path is a text for people, misplaced next to the import packages.

    No program reads it, so it does not matter which package's file is installed.
    """
    return _DOCUMENT.fullmatch(path) is not None


_DOCUMENT = re.compile(
    r".*/(site|dist)-packages/(README|LICEN[CS]E|COPYING|NOTICE|AUTHORS|CHANGE(S|LOG)|HISTORY)"
    r"(\.(md|rst|txt))?",
    re.IGNORECASE,
)


def collision_error(first: str, second: str, path: str = "") -> ResolveError:
    """Return the error for two packages that have ``path`` with different content."""
    shown = path or "the same files"
    return ResolveError(
        f"packages {first} and {second} both contain {shown}, with different content",
        hint=f'leave one out: exclude-dependencies = ["{first}"] under [tool.uv] in pyproject.toml,'
        f" or at the top of uv.toml; or UV_EXCLUDE=FILE with a line {first}",
    )


#: Packages that are built from one source and contain the same modules.
_VARIANTS = (
    (
        *("opencv-python", "opencv-contrib-python", "opencv-python-headless"),
        "opencv-contrib-python-headless",
    ),
    *(("onnxruntime", "onnxruntime-gpu"), ("faiss-cpu", "faiss-gpu"), ("mmcv", "mmcv-full")),
    *(("tensorflow", "tensorflow-cpu"), ("paddlepaddle", "paddlepaddle-gpu")),
    *(("pillow", "pillow-simd"), ("psycopg2", "psycopg2-binary")),
)


def reject_variants(names: Collection[str]) -> None:
    """Raise :class:`ResolveError` if two packages are known to contain the same files.

    Of others it is known only when they are unpacked.
    """
    for variants in _VARIANTS:
        found = [name for name in variants if name in names]
        if len(found) > 1:
            raise collision_error(*found[:2])


def _check_nothing_left(
    prefix: Path, owners: Mapping[str, Sequence[InstalledDistribution]]
) -> None:
    left: set[str] = set()
    everyone = [distribution for some in owners.values() for distribution in some]
    for root, _, files in os.walk(prefix):
        relative = os.path.relpath(root, prefix)
        for file in files:
            path = posixpath.normpath(posixpath.join(relative, file))
            if path == ".lock" or "__pycache__" in path.split("/"):
                continue
            shared = [
                distribution
                for unit, some in owners.items()
                if path.startswith(unit)
                for distribution in some
            ]
            if not any(is_written_by_installer(path, distribution.info) for distribution in shared):
                left.update(distribution.name for distribution in shared or everyone)
    if left:
        raise UnlistedFilesError(left)


def finish_tree(
    tree: Path,
    distribution: InstalledDistribution,
    scheme: InstallScheme,
    hosts: Sequence[str],
    *,
    direct_url: bytes | None = None,
) -> None:
    """Normalise a tree to exactly what its wheel contains: scripts, metadata, RECORD, modes,
    times.

    A file that no RECORD lists but that is in the tree was found among the wheel's own files, and
    gets a row.
    """
    info = tree / target_path(distribution.info, distribution.site, scheme)
    rows = {
        target_path(path, distribution.site, scheme): row
        for path, row in distribution.rows.items()
        if not is_written_by_installer(path, distribution.info)
    }
    for note in _INSTALLER_FILES:
        (info / note).unlink(missing_ok=True)
    _write_scripts(tree, info, distribution, scheme, hosts, rows)
    _write_file(info / "INSTALLER", dist_info.INSTALLER, tree, rows)
    if direct_url is not None:
        _write_file(info / "direct_url.json", direct_url, tree, rows)
    site = f"{scheme.prefix.strip('/')}/{scheme.site_packages}"
    listed, directories = _complete_record(tree, distribution, rows)
    lines = [
        RecordRow(posixpath.relpath(path, site), row.hash, row.size) for path, row in listed.items()
    ]
    lines.append(RecordRow(posixpath.relpath(os.path.relpath(info / "RECORD", tree), site)))
    _write_file(info / "RECORD", dist_info.write_record(lines), tree, rows)
    os.utime(info / "RECORD", (WHEEL_TIME, WHEEL_TIME))
    _fix_directories(directories)


def _write_file(
    path: Path, data: bytes, tree: Path, rows: dict[str, RecordRow], mode: int = 0o644
) -> None:
    """Write a file as a new inode (uv's cache may share the old one), and its row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    name = os.path.relpath(path, tree)
    rows[name] = RecordRow(name, dist_info.record_hash(data), str(len(data)))


def _write_scripts(
    tree: Path,
    info: Path,
    distribution: InstalledDistribution,
    scheme: InstallScheme,
    hosts: Sequence[str],
    rows: dict[str, RecordRow],
) -> None:
    """Write our own launchers for entry points, and replace the interpreter in other scripts."""
    directory = tree / scheme.prefix.strip("/") / "bin"
    entry_points = info / "entry_points.txt"
    launchers: dict[str, tuple[str, str]] = {}
    if entry_points.is_file():
        text = entry_points.read_text(encoding="utf-8", errors="replace")
        launchers = dist_info.parse_scripts(text, owner=distribution.name)
    for name, (module, function) in launchers.items():
        data = dist_info.render_launcher(module, function, scheme.interpreter)
        _write_file(directory / name, data, tree, rows, 0o755)
    for path in [path for path in rows if (tree / path).parent == directory]:
        script = tree / path
        if script.name not in launchers and script.is_file():
            data = dist_info.replace_shebang(script.read_bytes(), hosts, scheme.interpreter) or b""
            if data:
                _write_file(script, data, tree, rows, 0o755)


def _complete_record(
    tree: Path, distribution: InstalledDistribution, rows: Mapping[str, RecordRow]
) -> tuple[dict[str, RecordRow], list[str]]:
    """Return rows for exactly the files that exist, and all directories, parents first.

    Sets modes and times of the files on the way, so that the tree is walked only once.
    """
    listed: dict[str, RecordRow] = {}
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
                    listed[name] = _record_row(entry.path, name, rows)
                    _fix_file(entry.path, status)
                else:
                    raise InvalidWheel(
                        distribution.name, f"it contains a symlink or special file: {entry.name!r}"
                    )
    return listed, directories


def _record_row(path: str, name: str, rows: Mapping[str, RecordRow]) -> RecordRow:
    row = rows.get(name)
    if row is None or not row.hash:
        data = Path(path).read_bytes()
        row = RecordRow(name, dist_info.record_hash(data), str(len(data)))
    return row


def _fix_file(path: str, status: os.stat_result) -> None:
    """Set the normalised mode and time of a file; a different mode is set on a copy.

    The inode may be shared with uv's cache, where its mode must not change.
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
    # The file may be a hard link to uv's cache, whose mode must stay.
    os.unlink(path)
    Path(path).write_bytes(data)
    os.chmod(path, mode)
