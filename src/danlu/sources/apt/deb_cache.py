"""The package cache: exactly the locked files, from any mirror, verified and stored by hash."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio

from danlu.errors import ChecksumError, DanluError, LockError, OutsideError
from danlu.graph.ops import DebPackage
from danlu.sources.apt.errors import host_of, parse_fetch_outcomes, unreachable_error
from danlu.sources.apt.host_config import require_programs
from danlu.sources.apt.package_index import parse_records
from danlu.sources.apt.private_apt import PrivateApt, hold_lock
from danlu.sources.apt.resolver import candidate_versions
from danlu.sources.http import hash_file
from danlu.util.files import write_atomic
from danlu.util.process_activity import run_program

_HEX = re.compile(r"[0-9a-f]{64}")
_SAFE_FIELD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]*")

#: Number of parallel download processes: each uses one connection per host.
_MAX_STREAMS = 4

Transfer = Callable[[int, int], None]


def check_debs(debs: Iterable[DebPackage]) -> None:
    """Raise :class:`LockError` for locked packages that no archive can have produced."""
    for deb in debs:
        good = (
            _HEX.fullmatch(deb.sha256)
            and all(
                _SAFE_FIELD.fullmatch(field) for field in (deb.name, deb.version, deb.architecture)
            )
            and not deb.path.startswith("/")
            and ".." not in deb.path.split("/")
            and deb.path.isprintable()
            and deb.size >= 0
        )
        # These fields become names of files and parts of URLs, and the lock file may be a
        # stranger's.
        if not good:
            raise LockError(
                f"system package {deb.name!r} in the lockfile is invalid",
                hint="run `danlu lock` to lock it again",
            )


class DebCache:
    """Package files by hash in ``directory`` (``Paths.cache/"apt"/"debs"``)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, deb: DebPackage) -> Path:
        """Return where the file of ``deb`` is, or would be."""
        return self.directory / f"{deb.sha256}.deb"

    def partial_path(self, deb: DebPackage) -> Path:
        """Return where the file is downloaded to; an existing partial download is resumed."""
        return self.directory / "partial" / f"{deb.sha256}.deb"

    def has(self, deb: DebPackage) -> bool:
        """Return whether the file exists with the locked content; a damaged file is removed."""
        path = self.path(deb)
        try:
            if path.stat().st_size == deb.size and hash_file(path) == deb.sha256:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def accept(self, deb: DebPackage) -> bool:
        """Move a download into the cache if it has the locked content; return whether it has."""
        path = self.partial_path(deb)
        if path.is_symlink():  # apt's "file" method returns a symlink into the mirror
            source = path.resolve()
            path.unlink()
            if source.is_file():
                shutil.copyfile(source, path)
        if not path.is_file():
            return False
        if path.stat().st_size != deb.size or hash_file(path) != deb.sha256:
            return False
        path.chmod(0o644)
        os.replace(path, self.path(deb))
        return True

    def read_control(self, deb: DebPackage) -> str:
        """Return the control record of a cached file; the record is cached next to it."""
        path = self.directory / f"{deb.sha256}.control"
        try:
            return path.read_text()
        except FileNotFoundError:
            text = _read_control(self.path(deb))
            write_atomic(path, text.encode(), sync=False)
            return text


def _read_control(path: Path) -> str:
    require_programs("dpkg-deb")
    result = run_program(["dpkg-deb", "--field", str(path)])
    if result.returncode:
        raise OutsideError(
            f"{path.name} is not a valid Debian package",
            details=tuple(result.stderr.decode(errors="replace").splitlines()[:3]),
        )
    return result.stdout.decode(errors="replace").strip("\n") + "\n"


async def find_missing(cache: DebCache, debs: Sequence[DebPackage]) -> list[DebPackage]:
    """Return those ``debs`` that are not in the cache; hashes files in threads."""
    absent: list[DebPackage] = []
    limiter = anyio.CapacityLimiter(os.cpu_count() or 2)

    async def check(deb: DebPackage) -> None:
        if not await anyio.to_thread.run_sync(cache.has, deb, limiter=limiter):
            absent.append(deb)

    async with anyio.create_task_group() as group:
        for deb in debs:
            group.start_soon(check, deb)
    return sorted(absent, key=lambda deb: deb.name)


def _file_url(root: str, deb: DebPackage) -> str:
    """Return the URL of a file in an archive; ``copy:``, as apt only links ``file:`` URLs."""
    if root.startswith("file:"):
        root = "copy:" + root.removeprefix("file:")
    return f"{root}/{quote(deb.path)}"


async def _download_files(
    apt: PrivateApt, cache: DebCache, jobs: Sequence[tuple[str, DebPackage]]
) -> str:
    """Download (URL, package) pairs in parallel with apt's own helper; return its output."""
    output: list[str] = []

    async def batch(some: Sequence[tuple[str, DebPackage]]) -> None:
        args = [
            part
            for address, deb in some
            for part in (address, str(cache.partial_path(deb)), f"SHA256:{deb.sha256}")
        ]
        result = await apt.run("/usr/lib/apt/apt-helper", "download-file", *args)
        output.append((result.stdout + result.stderr).decode(errors="replace"))

    async with anyio.create_task_group() as group:
        # Largest first, round-robin, so that all streams get about the same number of bytes.
        ordered = sorted(jobs, key=lambda job: -job[1].size)
        for index in range(min(_MAX_STREAMS, len(ordered))):
            group.start_soon(batch, ordered[index::_MAX_STREAMS])
    return "".join(output)


async def _report_progress(cache: DebCache, debs: Sequence[DebPackage], transfer: Transfer) -> None:
    """Report to ``transfer`` twice a second how many bytes of ``debs`` have arrived."""
    total = sum(deb.size for deb in debs)

    def here() -> int:
        sizes = 0
        for deb in debs:
            for path in (cache.path(deb), cache.partial_path(deb)):
                try:
                    sizes += path.stat().st_size
                except FileNotFoundError:
                    continue
        return min(sizes, total)

    while True:
        transfer(here(), total)
        await anyio.sleep(0.5)


async def fetch_all(
    cache: DebCache,
    debs: Sequence[DebPackage],
    open_apt: Callable[[], Awaitable[PrivateApt]],
    *,
    transfer: Transfer | None = None,
    offline: bool = False,
) -> None:
    """Download all ``debs`` that are missing in the cache, verified; if none is, no network is
    used.

    ``open_apt`` is called only if something must be downloaded. Raises :class:`OutsideError` for
    files that no mirror has (naming the versions that are available) or that cannot be reached, and
    :class:`ChecksumError` for content that differs from the lock.
    """
    check_debs(debs)
    absent = await find_missing(cache, debs)
    if not absent:
        return
    if offline:
        names = ", ".join(f"{deb.name} {deb.version}" for deb in absent[:3])
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise OutsideError(
            f"{names}{more}: not cached, and cannot be fetched with --offline",
            hint="build once without --offline",
        )
    apt = await open_apt()
    (cache.directory / "partial").mkdir(parents=True, exist_ok=True)
    async with hold_lock(cache.directory / "lock"):
        # Another build may have downloaded them while we waited.
        absent = await find_missing(cache, absent)
        await _fetch_absent(apt, cache, absent, transfer)


async def _fetch_absent(
    apt: PrivateApt, cache: DebCache, absent: Sequence[DebPackage], transfer: Transfer | None
) -> None:
    roots = {deb: apt.archive_roots(deb.archive) for deb in absent}
    everything = list(absent)
    outputs: list[str] = []
    async with anyio.create_task_group() as group:
        if transfer is not None:
            group.start_soon(_report_progress, cache, everything, transfer)
        attempt = 0
        # Each round tries the next URL of every package that is still missing.
        while absent and attempt < max(len(addresses) for addresses in roots.values()):
            jobs = [
                (_file_url(roots[deb][attempt], deb), deb)
                for deb in absent
                if attempt < len(roots[deb])
            ]
            outputs.append(await _download_files(apt, cache, jobs))
            absent = [
                deb for deb in absent if not await anyio.to_thread.run_sync(cache.accept, deb)
            ]
            attempt += 1
        group.cancel_scope.cancel()
    if transfer is not None:
        total = sum(deb.size for deb in everything)
        transfer(total - sum(deb.size for deb in absent), total)
    if absent:
        raise await _fetch_error(apt, absent, outputs)


async def _fetch_error(
    apt: PrivateApt, absent: Sequence[DebPackage], outputs: Sequence[str]
) -> DanluError:
    """Return why ``absent`` packages could not be fetched: gone, changed, or unreachable."""
    output = "\n".join(outputs)
    first = absent[0]
    named = f"{first.name} {first.version}"
    outcomes = [
        (uri, kind) for uri, kind in parse_fetch_outcomes(output) if uri.endswith(quote(first.path))
    ]
    altered = sorted({host_of(uri) for uri, kind in outcomes if kind == "mismatch"})
    if altered:
        return ChecksumError(
            f"checksum mismatch for {named} from {' and '.join(altered)}",
            hint="try another mirror, or run `danlu lock --upgrade "
            f"{first.name}` to lock the version that is available now",
        )
    # The first URL is in the archive that the lock names; the others are guesses.
    if not outcomes or outcomes[0][1] != "gone":
        return unreachable_error(output, what=named)
    names = [deb.name for deb in absent]
    try:
        await apt.refresh(force=True)
        now = await candidate_versions(apt, names)
    except DanluError:  # this only improves the hint; the error to report is the first one
        now = {}
    upgrade = " ".join(f"--upgrade {name}" for name in names[:6])
    return OutsideError(
        f"{named} is no longer on the mirrors of {apt.release_name}"
        + (f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""),
        hint=f"run `danlu lock {upgrade}` to lock the versions that are available now",
        details=tuple(
            f"{deb.name}: locked {deb.version}, available {now.get(deb.name, 'none')}"
            for deb in absent[:12]
        ),
    )


async def write_repository(cache: DebCache, debs: Sequence[DebPackage], directory: Path) -> None:
    """Write a flat archive of exactly ``debs``, which must be cached, to ``directory``.

    Files are hard links named by hash; ``Packages`` contains the locked hashes, so that apt
    verifies them again. Raises :class:`LockError` if a file is not the package that the lock calls
    it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    limiter = anyio.CapacityLimiter(os.cpu_count() or 2)
    texts: dict[str, str] = {}

    async def add(deb: DebPackage) -> None:
        texts[deb.sha256] = await anyio.to_thread.run_sync(
            partial(_add_to_repository, cache, deb, directory), limiter=limiter
        )

    async with anyio.create_task_group() as group:
        for deb in debs:
            group.start_soon(add, deb)
    ordered = sorted(debs, key=lambda deb: (deb.name, deb.architecture))
    text = "\n".join(texts[deb.sha256] for deb in ordered)
    (directory / "Packages").write_text(text)


def _add_to_repository(cache: DebCache, deb: DebPackage, directory: Path) -> str:
    target = directory / f"{deb.sha256}.deb"
    try:
        os.link(cache.path(deb), target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(cache.path(deb), target)
    control = cache.read_control(deb)
    _check_identity(deb, control)
    return f"{control}Filename: ./{target.name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"


def _check_identity(deb: DebPackage, control: str) -> None:
    stated = next(parse_records(control)).key
    if stated != (deb.name, deb.version, deb.architecture):
        raise LockError(
            f"the file locked as {deb.name} {deb.version} contains {' '.join(stated[:2])}",
            hint="run `danlu lock` to lock it again",
        )
