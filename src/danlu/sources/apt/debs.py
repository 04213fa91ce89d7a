"""Exactly the locked package files: fetched from any mirror, verified, kept by hash, indexed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from danlu.errors import ChecksumError, DanluError, LockError, OutsideError
from danlu.graph import Deb
from danlu.sources.apt.home import Home, locked
from danlu.sources.apt.host import need
from danlu.sources.apt.messages import fetch_outcomes, host_of, unreachable
from danlu.util.files import write_atomic

__all__ = ["Cache", "check_debs", "fetch_all", "write_repository"]

_HEX = re.compile(r"[0-9a-f]{64}")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]*")

#: Processes that download at a time: apt uses one connection a host in each.
_STREAMS = 4

Transfer = Callable[[int, int], None]


def check_debs(debs: Iterable[Deb]) -> None:
    """Raise :class:`LockError` for locked packages whose fields no archive can have made."""
    for deb in debs:
        good = (
            _HEX.fullmatch(deb.sha256)
            and all(_SAFE.fullmatch(one) for one in (deb.name, deb.version, deb.architecture))
            and not deb.path.startswith("/")
            and ".." not in deb.path.split("/")
            and deb.path.isprintable()
            and deb.size >= 0
        )
        if not good:
            raise LockError(
                f"the lock's system package {deb.name!r} is damaged",
                hint="`danlu lock` writes it anew",
            )


class Cache:
    """Package files by hash below ``directory`` (``Paths.cache/"apt"/"debs"``)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, deb: Deb) -> Path:
        """Where the file of ``deb`` is, or would be."""
        return self.directory / f"{deb.sha256}.deb"

    def partial(self, deb: Deb) -> Path:
        """Where it is while it is being fetched; what is there is continued."""
        return self.directory / "partial" / f"{deb.sha256}.deb"

    def has(self, deb: Deb) -> bool:
        """Whether the file is there and its bytes are the locked ones; a damaged one is removed."""
        path = self.path(deb)
        try:
            if path.stat().st_size == deb.size and _sha256(path) == deb.sha256:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def accept(self, deb: Deb) -> bool:
        """Take a fetched file in when its bytes are the locked ones; gives whether they were."""
        path = self.partial(deb)
        if path.is_symlink():  # apt's file method answers with a link to the mirror's file
            source = path.resolve()
            path.unlink()
            if source.is_file():
                shutil.copyfile(source, path)
        if not path.is_file():
            return False
        if path.stat().st_size != deb.size or _sha256(path) != deb.sha256:
            return False
        path.chmod(0o644)
        os.replace(path, self.path(deb))
        return True

    def control(self, deb: Deb) -> str:
        """The control record of a file that is there, kept beside it."""
        path = self.directory / f"{deb.sha256}.control"
        try:
            return path.read_text()
        except FileNotFoundError:
            text = _read_control(self.path(deb))
            write_atomic(path, text.encode(), sync=False)
            return text


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_control(path: Path) -> str:
    import subprocess

    need("dpkg-deb")
    result = subprocess.run(
        ["dpkg-deb", "--field", str(path)],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode:
        raise OutsideError(
            f"{path.name} is not a package file",
            details=tuple(result.stderr.decode(errors="replace").splitlines()[:3]),
        )
    return result.stdout.decode(errors="replace").strip("\n") + "\n"


async def missing_of(cache: Cache, debs: Sequence[Deb]) -> list[Deb]:
    """Those of ``debs`` that the cache has not; hashed in threads."""
    import anyio

    absent: list[Deb] = []
    limiter = anyio.CapacityLimiter(os.cpu_count() or 2)

    async def check(deb: Deb) -> None:
        if not await anyio.to_thread.run_sync(cache.has, deb, limiter=limiter):
            absent.append(deb)

    async with anyio.create_task_group() as group:
        for deb in debs:
            group.start_soon(check, deb)
    return sorted(absent, key=lambda deb: deb.name)


def _address(root: str, deb: Deb) -> str:
    """The address of a file below an archive's root; ``copy:`` so that apt makes a file of it."""
    if root.startswith("file:"):
        root = "copy:" + root.removeprefix("file:")
    return f"{root}/{quote(deb.path)}"


async def _download(home: Home, cache: Cache, jobs: Sequence[tuple[str, Deb]]) -> str:
    """Fetch (address, package) pairs with apt's own helper, several at a time; what it printed."""
    import anyio

    output: list[str] = []

    async def batch(some: Sequence[tuple[str, Deb]]) -> None:
        args = [
            part
            for address, deb in some
            for part in (address, str(cache.partial(deb)), f"SHA256:{deb.sha256}")
        ]
        result = await home.run("/usr/lib/apt/apt-helper", "download-file", *args)
        output.append((result.stdout + result.stderr).decode(errors="replace"))

    async with anyio.create_task_group() as group:
        # Largest first, dealt out in turn: each stream gets its share of the bytes.
        ordered = sorted(jobs, key=lambda job: -job[1].size)
        for index in range(min(_STREAMS, len(ordered))):
            group.start_soon(batch, ordered[index::_STREAMS])
    return "".join(output)


async def _watch(cache: Cache, debs: Sequence[Deb], transfer: Transfer) -> None:
    """Tell ``transfer`` twice a second how many bytes of ``debs`` are here."""
    import anyio

    total = sum(deb.size for deb in debs)

    def here() -> int:
        sizes = 0
        for deb in debs:
            for path in (cache.path(deb), cache.partial(deb)):
                try:
                    sizes += path.stat().st_size
                except FileNotFoundError:
                    continue
        return min(sizes, total)

    while True:
        transfer(here(), total)
        await anyio.sleep(0.5)


async def fetch_all(
    cache: Cache,
    debs: Sequence[Deb],
    open_home: Callable[[], Awaitable[Home]],
    *,
    transfer: Transfer | None = None,
    offline: bool = False,
) -> None:
    """Bring all ``debs`` into the cache, verified; what is there needs no network and no apt.

    ``open_home`` is called when something must be fetched. Raises :class:`OutsideError` for what
    no mirror has (it names what the archive has instead) or that cannot be reached, and
    :class:`ChecksumError` for other bytes than the locked ones.
    """
    check_debs(debs)
    absent = await missing_of(cache, debs)
    if not absent:
        return
    if offline:
        names = ", ".join(f"{deb.name} {deb.version}" for deb in absent[:3])
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise OutsideError(
            f"{names}{more}: not in the cache, and danlu is offline",
            hint="build once with a network: without --offline",
        )
    home = await open_home()
    (cache.directory / "partial").mkdir(parents=True, exist_ok=True)
    async with locked(cache.directory / "lock"):
        absent = await missing_of(cache, absent)
        await _fetch_absent(home, cache, absent, transfer)


async def _fetch_absent(
    home: Home, cache: Cache, absent: Sequence[Deb], transfer: Transfer | None
) -> None:
    import anyio

    roots = {deb: home.roots(deb.archive) for deb in absent}
    everything = list(absent)
    outputs: list[str] = []
    async with anyio.create_task_group() as group:
        if transfer is not None:
            group.start_soon(_watch, cache, everything, transfer)
        attempt = 0
        while absent and attempt < max(len(one) for one in roots.values()):
            jobs = [
                (_address(roots[deb][attempt], deb), deb)
                for deb in absent
                if attempt < len(roots[deb])
            ]
            outputs.append(await _download(home, cache, jobs))
            absent = [
                deb for deb in absent if not await anyio.to_thread.run_sync(cache.accept, deb)
            ]
            attempt += 1
        group.cancel_scope.cancel()
    if transfer is not None:
        total = sum(deb.size for deb in everything)
        transfer(total - sum(deb.size for deb in absent), total)
    if absent:
        raise await _failure(home, absent, outputs)


async def _failure(home: Home, absent: Sequence[Deb], outputs: Sequence[str]) -> DanluError:
    """Why ``absent`` could not be had: gone, other bytes, or nobody answered."""
    from danlu.sources.apt.plan import candidates

    output = "\n".join(outputs)
    first = absent[0]
    named = f"{first.name} {first.version}"
    outcomes = [
        (uri, kind) for uri, kind in fetch_outcomes(output) if uri.endswith(quote(first.path))
    ]
    altered = sorted({host_of(uri) for uri, kind in outcomes if kind == "mismatch"})
    if altered:
        return ChecksumError(
            f"{named} from {' and '.join(altered)} is not what the lock says",
            hint="another mirror may be whole; `danlu lock --upgrade "
            f"{first.name}` locks what the archive has now",
        )
    # The first address is that of the archive the lock names; the others are guesses.
    if not outcomes or outcomes[0][1] != "gone":
        return unreachable(output, what=named)
    names = [deb.name for deb in absent]
    try:
        await home.refresh(force=True)
        now = await candidates(home, names)
    except DanluError:  # the answer is only a help; the failure to be told is the first one
        now = {}
    upgrade = " ".join(f"--upgrade {name}" for name in names[:6])
    return OutsideError(
        f"{named} is no longer on the mirrors of {home.what}"
        + (f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""),
        hint=f"`danlu lock {upgrade}` locks what they have now",
        details=tuple(
            f"{deb.name}: locked {deb.version}, now {now.get(deb.name, 'gone')}"
            for deb in absent[:12]
        ),
    )


async def write_repository(cache: Cache, debs: Sequence[Deb], directory: Path) -> None:
    """Make ``directory`` a flat archive of exactly ``debs``, which the cache has.

    Files are hard links named by hash; ``Packages`` states the locked hashes, so apt verifies
    once more. Raises :class:`LockError` where a file is not the package the lock calls it.
    """
    import anyio

    directory.mkdir(parents=True, exist_ok=True)
    limiter = anyio.CapacityLimiter(os.cpu_count() or 2)
    texts: dict[str, str] = {}

    async def add(deb: Deb) -> None:
        texts[deb.sha256] = await anyio.to_thread.run_sync(
            partial(_add, cache, deb, directory), limiter=limiter
        )

    async with anyio.create_task_group() as group:
        for deb in debs:
            group.start_soon(add, deb)
    ordered = sorted(debs, key=lambda deb: (deb.name, deb.architecture))
    text = "\n".join(texts[deb.sha256] for deb in ordered)
    (directory / "Packages").write_text(text)


def _add(cache: Cache, deb: Deb, directory: Path) -> str:
    target = directory / f"{deb.sha256}.deb"
    try:
        os.link(cache.path(deb), target)
    except OSError:  # another file system, or no links there
        shutil.copyfile(cache.path(deb), target)
    control = cache.control(deb)
    _check_identity(deb, control)
    return f"{control}Filename: ./{target.name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"


def _check_identity(deb: Deb, control: str) -> None:
    from danlu.sources.apt.records import records

    stated = next(records(control)).key
    if stated != (deb.name, deb.version, deb.architecture):
        raise LockError(
            f"the lock's {deb.name} {deb.version} is in truth {' '.join(stated[:2])}",
            hint="`danlu lock` writes it anew",
        )
