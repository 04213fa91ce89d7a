"""What bootstrapping and installing share: the locked files as a mounted archive, and its run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.failures import step_failure
from danlu.errors import StoreError
from danlu.graph import Deb
from danlu.sandbox.types import SYSTEM_PATH, Mount, Process, Root
from danlu.sources.apt import Cache, fetch, write_repository
from danlu.sources.apt.records import installed

__all__ = ["REPOSITORY", "check_installed", "fetched", "repository", "run_script"]

#: Where the archive of locked files is seen inside: a name no package has, so none misses it.
REPOSITORY = "/danlu-packages"

#: Answers invoke-rc.d: nothing may be started (policy-rc.d(8)).
_NO_SERVICES = "#!/bin/sh\nexit 101\n"

_LAST_LINES = 20


async def fetched(
    context: Context, debs: Sequence[Deb], *, distribution: str = "", codename: str
) -> Cache:
    """The cache with the locked files of ``debs`` in it, verified; what is missing is fetched."""
    return await fetch(
        debs,
        distribution,
        codename,
        apt=context.apt_source,
        paths=context.paths,
        config=context.config,
        transfer=context.transfer,
        offline=context.offline,
    )


async def repository(cache: Cache, debs: Sequence[Deb], directory: Path) -> None:
    """The archive of ``debs`` in ``directory``, with the ``policy-rc.d`` that refuses services."""
    await write_repository(cache, debs, directory)
    policy = directory / "policy-rc.d"
    policy.write_text(_NO_SERVICES)
    policy.chmod(0o755)
    directory.chmod(0o755)


def environment(epoch: int) -> dict[str, str]:
    """The whole environment of packages' scripts: the same on every machine."""
    return {
        "APT_LISTCHANGES_FRONTEND": "none",
        "DEBCONF_NONINTERACTIVE_SEEN": "true",
        "DEBIAN_FRONTEND": "noninteractive",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PATH": SYSTEM_PATH,
        "SOURCE_DATE_EPOCH": str(epoch),
        "TERM": "dumb",
        "TZ": "UTC",
    }


async def run_script(
    context: Context,
    script: str,
    root: Root,
    *,
    directory: Path,
    epoch: int,
    scratch: Sequence[str] = (),
    what: str,
) -> None:
    """Run a shell script in ``root`` with the archive at :data:`REPOSITORY` and no network.

    ``scratch`` are directories of memory. Raises :class:`StepFailed` with the last lines, or
    :class:`StoreError` where the disk is full.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)

    def heard(line: str) -> None:
        last.append(line)
        context.log(line)

    mounts = [
        Mount(REPOSITORY, directory, readonly=True),
        Mount("/usr/sbin/policy-rc.d", directory / "policy-rc.d", readonly=True),
        *(Mount(target, kind="tmpfs") for target in scratch),
    ]
    process = Process(("/bin/sh", "-ec", script), environment(epoch))
    code = await context.sandbox().run(process, root, mounts=mounts, network=False, on_line=heard)
    if code:
        message = f"{what}: apt or dpkg ended with exit code {code}"
        raise step_failure(context, message, code=code, last=last)


def check_installed(status: str, debs: Sequence[Deb], *, exactly: bool) -> None:
    """Raise :class:`StoreError` unless ``status`` has ``debs`` at their versions, fully configured.

    ``exactly`` allows nothing else.
    """
    have = installed(status)
    found: Mapping[str, str] = {
        name: entry.version for name, entry in have.items() if ":" not in name
    }
    wanted = {deb.name: deb.version for deb in debs}
    wrong = [name for name in wanted if found.get(name) != wanted[name]]
    if exactly:
        wrong += [name for name in found if name not in wanted]
    if wrong:
        raise StoreError(
            "the installed system is not what was locked",
            details=tuple(
                f"{name}: locked {wanted.get(name, '-')}, installed {found.get(name, '-')}"
                for name in wrong[:12]
            ),
        )
