"""Offer locked packages to dpkg and apt as a mounted archive, and run their scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from danlu.builder.embedded.context import OpContext, TransferReport
from danlu.errors import StoreError
from danlu.graph.ops import AptInstall, DebPackage
from danlu.sandbox.types import SYSTEM_PATH, Mount, ProcessSpec, RootFilesystem
from danlu.sources.apt import DebCache, fetch_debs, write_repository
from danlu.sources.apt.package_index import parse_records, parse_status, provided_names

#: Where the archive is mounted. No package uses this path.
REPOSITORY = "/danlu-packages"

#: Forbids invoke-rc.d to start services (policy-rc.d(8)).
_NO_SERVICES = "#!/bin/sh\nexit 101\n"


#: What dpkg prints for each package, and what it has done with it then.
_PACKAGE_LINE = re.compile(r"(Unpacking|Setting up) ([\w.+:-]+) \(")
_PACKAGE_UNITS = {"Unpacking": "unpacked", "Setting up": "configured"}


async def fetch_packages(
    context: OpContext, debs: Sequence[DebPackage], *, distribution: str = "", codename: str
) -> DebCache:
    """Return the cache with the verified files of ``debs``; fetch those that are missing."""
    return await fetch_debs(
        debs,
        distribution,
        codename,
        apt=context.request.apt_source,
        paths=context.paths,
        config=context.config,
        transfer=context.transfer,
        offline=context.request.offline,
    )


async def write_apt_repository(
    cache: DebCache, debs: Sequence[DebPackage], directory: Path
) -> None:
    """Write the archive of ``debs`` to ``directory``, with a ``policy-rc.d`` against services."""
    await write_repository(cache, debs, directory)
    policy = directory / "policy-rc.d"
    policy.write_text(_NO_SERVICES)
    policy.chmod(0o755)
    directory.chmod(0o755)


def write_apt_lists(op: AptInstall, cache: DebCache, directory: Path) -> None:
    """Write apt's sources and the names to install, to mark as automatic, and as manual."""
    requested = {name.partition("=")[0].partition(":")[0] for name in op.requested}
    # A request for a virtual package is a request for its provider.
    wanted = {
        deb.name
        for deb in op.packages
        if deb.name in requested
        or requested & provided_names(parse_records(cache.read_control(deb)))
    }
    present = {deb.name for deb in op.packages}
    lines = {
        "sources.list": [f"deb [trusted=yes] file:{REPOSITORY} ./"],
        "install": [f"{deb.name}={deb.version}" for deb in op.packages],
        "auto": present - wanted,
        "manual": requested - present,
    }
    for name, some in lines.items():
        (directory / name).write_text(_format_lines(some))


def _format_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def package_environment(epoch: int) -> dict[str, str]:
    """Return the environment of maintainer scripts, which is the same on every machine."""
    return {
        "APT_LISTCHANGES_FRONTEND": "none",
        "DEBCONF_NONINTERACTIVE_SEEN": "true",
        "DEBIAN_FRONTEND": "noninteractive",
        # TeX's programs use SOURCE_DATE_EPOCH for the formats that they write only with this.
        "FORCE_SOURCE_DATE": "1",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PATH": SYSTEM_PATH,
        # In which order Perl's hashes are walked, which fmtutil does: the first format that it
        # makes finds fewer files than the others.
        "PERL_HASH_SEED": "0",
        "PERL_PERTURB_KEYS": "0",
        "SOURCE_DATE_EPOCH": str(epoch),
        "TERM": "dumb",
        "TZ": "UTC",
    }


class PackageCounter:
    """Report how many of ``total`` packages dpkg has unpacked and configured, by its output."""

    def __init__(self, total: int, report: TransferReport) -> None:
        self._total = total
        self._report = report
        self._seen: dict[str, set[str]] = {unit: set() for unit in _PACKAGE_UNITS.values()}

    def __call__(self, line: str) -> None:
        """Read a line of dpkg's output."""
        match = _PACKAGE_LINE.match(line)
        if match is None:
            return
        unit = _PACKAGE_UNITS[match[1]]
        self._seen[unit].add(match[2])
        # Maintainer scripts may print anything.
        self._report(min(len(self._seen[unit]), self._total), self._total, unit)


async def run_script(
    context: OpContext,
    script: str,
    root: RootFilesystem,
    *,
    directory: Path,
    epoch: int,
    scratch: Sequence[str] = (),
    packages: int,
    what: str,
) -> None:
    """Run a shell script in ``root`` with the archive at :data:`REPOSITORY` and no network.

    ``packages`` is how many dpkg will install; ``scratch`` are directories to mount as tmpfs.
    Raises :class:`StepFailed` with the last lines, or :class:`StoreError` if the disk is full.
    """
    mounts = [
        Mount(REPOSITORY, directory, readonly=True),
        Mount("/usr/sbin/policy-rc.d", directory / "policy-rc.d", readonly=True),
        *(Mount(target, kind="tmpfs") for target in scratch),
    ]
    process = ProcessSpec(("/bin/sh", "-ec", script), package_environment(epoch))
    # Without a network: a maintainer script must not fetch what the lock does not pin.
    await context.run(
        process,
        root,
        f"{what}: apt or dpkg",
        mounts=mounts,
        network=False,
        on_line=PackageCounter(packages, context.transfer),
    )


def verify_installation(status: str, debs: Sequence[DebPackage], *, exactly: bool) -> None:
    """Raise :class:`StoreError` unless ``status`` has ``debs`` at their versions, fully configured.

    ``exactly`` allows nothing else.
    """
    have = parse_status(status)
    found: Mapping[str, str] = {
        name: entry.version for name, entry in have.items() if ":" not in name
    }
    wanted = {deb.name: deb.version for deb in debs}
    wrong = [name for name in wanted if found.get(name) != wanted[name]]
    if exactly:
        wrong += [name for name in found if name not in wanted]
    if wrong:
        raise StoreError(
            "the installed packages do not match the lock",
            details=tuple(
                f"{name}: locked {wanted.get(name, '-')}, installed {found.get(name, '-')}"
                for name in wrong[:12]
            ),
        )
