"""Lock an interpreter that the base's distribution does not have: a standalone build."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio.to_thread
from msgspec.structs import replace
from packaging.version import Version

from danlu.environment.archives import LockedArchive
from danlu.environment.image_layout import STANDALONE_PYTHON
from danlu.environment.lock import LockedBase, LockedPython
from danlu.errors import ChecksumError, DanluError, MachineError, OutsideError, ResolveError
from danlu.sources.http import FetchedFile
from danlu.sources.mirrors import (
    fetch_from_mirror,
    list_mirrors,
    read_from_mirror,
    suggest_mirror,
)
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.python_builds import (
    PythonBuild,
    PythonRequirement,
    check_build,
    choose_builds,
    list_directory_builds,
    list_release_builds,
    parse_build,
    parse_checksums,
)

if TYPE_CHECKING:
    from danlu.resolve.context import ResolveContext

_MIRROR = "python"


async def lock_standalone_python(
    version: str,
    base: LockedBase,
    old: LockedPython | None,
    context: ResolveContext,
    *,
    declared: Mapping[str, str],
    failure: DanluError,
) -> LockedPython:
    """Return the newest standalone build of ``version`` that a mirror has; ``inputs`` is empty.

    ``old`` stays if it may not change. ``failure`` says why the distribution does not provide it.

    Raises :class:`ResolveError` if the version does not exist, :class:`MachineError` if no mirror
    has it (naming the setting that would provide it), :class:`OutsideError` if none is reachable.
    """
    if old is not None and _can_keep(old, version, context):
        return replace(old, inputs="")
    target = PlatformTarget(version.rstrip("t"), base.libc, context.platform.architecture)
    libc = "musl" if target.libc_version[0] == "musl" else "gnu"
    requirement = PythonRequirement(
        version.rstrip("t"), target.machine, libc, free_threaded=version.endswith("t")
    )
    mirrors = list_mirrors(_MIRROR, context.config, declared)
    source = _BuildSource(mirrors, context)
    build, fetched = await source.find(requirement, version, failure)
    await anyio.to_thread.run_sync(check_build, fetched, build)
    archive = LockedArchive(
        name="cpython",
        version=f"{build.version}+{build.release}",
        mirror=_MIRROR,
        path=build.path,
        sha256=fetched.sha256,
        size=fetched.size,
        platform=str(context.platform),
    )
    executable = f"{STANDALONE_PYTHON}/{build.program}"
    return LockedPython("", build.version, executable, "archive", archive)


def _can_keep(old: LockedPython, version: str, context: ResolveContext) -> bool:
    if old.archive is None or old.archive.platform != str(context.platform):
        return False
    plain = version.rstrip("t")
    fits = old.version == plain or old.version.startswith(plain + ".")
    same_threading = old.executable.endswith("t") == version.endswith("t")
    return fits and same_threading and not context.may_change("cpython")


class _BuildSource:
    """The mirrors of one resolution."""

    def __init__(self, mirrors: Sequence[str], context: ResolveContext) -> None:
        self._mirrors = mirrors
        self._cache = context.paths.cache / "http"
        self._offline = context.offline

    async def find(
        self, requirement: PythonRequirement, version: str, failure: DanluError
    ) -> tuple[PythonBuild, FetchedFile]:
        """Return the newest build that meets ``requirement``, downloaded."""
        reason = failure.message
        hint = f"{failure.hint}; or {suggest_mirror(_MIRROR)}".removeprefix("; or ")
        published = await list_release_builds()
        available = choose_builds(list_directory_builds(self._mirrors), requirement)
        known = choose_builds(published, requirement)
        try:
            for build in (*available, *known):
                fetched = await self._fetch_build(build)
                if fetched is not None:
                    return fetched
            for build in choose_builds(await self._read_index(), requirement):
                fetched = await self._fetch_build(build)
                if fetched is not None:
                    return fetched
        except ChecksumError:
            raise
        except OutsideError as error:
            raise type(error)(
                f"{reason}, and a standalone build of Python {version} cannot be downloaded",
                details=(error.message, *error.details),
                hint=hint,
            ) from error
        if not known:
            raise _unknown_version(published, requirement, version, reason)
        raise MachineError(
            f"{reason}, and no mirror has a standalone build of Python {version}",
            details=tuple(f"not found: {build.path}" for build in known[:1]),
            hint=hint,
        )

    async def _fetch_build(self, build: PythonBuild) -> tuple[PythonBuild, FetchedFile] | None:
        sha256 = build.sha256 or (await self._read_checksums(build.release)).get(build.file)
        try:
            fetched = await fetch_from_mirror(
                _MIRROR,
                build.path,
                sha256,
                mirrors=self._mirrors,
                cache=self._cache,
                offline=self._offline,
            )
        except FileNotFoundError:
            return None
        return build, fetched

    async def _read_index(self) -> list[PythonBuild]:
        """Return the builds in the ``SHA256SUMS`` of mirrors that list all their files there."""
        sums = await self._read_checksums("")
        builds = [(parse_build(file), sha256) for file, sha256 in sums.items()]
        return [replace(build, sha256=sha256) for build, sha256 in builds if build is not None]

    async def _read_checksums(self, release: str) -> dict[str, str]:
        """Return the published hashes of a release; empty if the mirrors do not have them."""
        path = f"{release}/SHA256SUMS" if release else "SHA256SUMS"
        try:
            data = await read_from_mirror(
                _MIRROR, path, mirrors=self._mirrors, cache=self._cache, offline=self._offline
            )
        except FileNotFoundError:
            return {}
        return parse_checksums(data.decode(errors="replace"))


def _unknown_version(
    published: Sequence[PythonBuild], requirement: PythonRequirement, version: str, reason: str
) -> ResolveError:
    """Return the error for a version that does not exist, with the nearest that does."""
    series = replace(requirement, version="3")
    exist = sorted({Version(build.version) for build in choose_builds(published, series)})
    full = [str(known) for known in exist]
    minors = list(dict.fromkeys(".".join(known.split(".")[:2]) for known in full))
    asked = requirement.version
    same_minor = [known for known in full if known.startswith(".".join(asked.split(".")[:2]) + ".")]
    if asked.count(".") == 2 and same_minor:
        near = difflib.get_close_matches(asked, same_minor, 1, 0) or same_minor[-1:]
        hint = f"the nearest version is {near[0]}"
    else:
        hint = f"versions with standalone builds: {', '.join(minors)}" if minors else ""
    return ResolveError(f"{reason}, and Python {version} has no standalone build", hint=hint)
