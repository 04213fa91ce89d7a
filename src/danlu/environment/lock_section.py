"""Lists of pins that a build function owns, and the network as they see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from danlu.environment.lock import FunctionLock
from danlu.environment.types import Environment, ProjectDigests
from danlu.graph.ops import Platform

Pin = TypeVar("Pin", bound=msgspec.Struct)


class SystemVersion(msgspec.Struct, frozen=True):
    """A package of the base's distribution: its full version, and whether the base has it."""

    version: str
    is_installed: bool = False


class MirroredFile(msgspec.Struct, frozen=True):
    """A file of a mirror: its address (without credentials), SHA-256 and size in bytes."""

    url: str
    sha256: str
    size: int


class HashedTree(msgspec.Struct, frozen=True):
    """An archive whose files have a Git hash: its SHA-256, its size in bytes, paths and contents.

    ``files`` are the contents of the files that were asked for and exist.
    """

    sha256: str
    size: int
    paths: frozenset[str]
    files: Mapping[str, bytes]


class WheelFile(msgspec.Struct, frozen=True):
    """A wheel of the Python index: its version, file name, SHA-256 and size in bytes."""

    version: str
    file: str
    sha256: str
    size: int


class SectionResolver(Protocol):
    """The network, as a :class:`LockSection` sees it."""

    def may_change(self, name: str) -> bool:
        """Return whether the user asked to upgrade what the lock calls ``name``."""
        ...

    async def fetch_file(self, url: str, sha256: str) -> tuple[str, int]:
        """Download a file and return its SHA-256 and size; ``sha256`` is expected if not empty."""
        ...

    async def resolve_image(self, reference: str) -> str:
        """Return the digest of an image's manifest for the platform."""
        ...

    @property
    def platform(self) -> Platform:
        """What the environment runs on."""
        ...

    async def find_system_versions(self, names: Sequence[str]) -> Mapping[str, SystemVersion]:
        """Return those packages of ``names`` that the base has or its distribution offers."""
        ...

    async def read_from_mirror(self, mirror: str, path: str) -> bytes:
        """Return an index file of a mirror, downloaded again each time; not for large files.

        ``mirror`` is a name of :mod:`danlu.sources.mirrors`. Raises :class:`FileNotFoundError` if
        the mirrors do not have the file, :class:`OutsideError` if none can be reached.
        """
        ...

    async def fetch_from_mirror(
        self, mirror: str, path: str, sha256: str = "", *, integrity: str = ""
    ) -> MirroredFile:
        """Download a file of a mirror; raises as :meth:`read_from_mirror`.

        ``integrity`` is a hash as npm writes it (``sha512-…``, Subresource Integrity). Raises
        :class:`ChecksumError` for another file.
        """
        ...

    async def fetch_tree(
        self, mirror: str, path: str, tree: str, members: Sequence[str] = ()
    ) -> HashedTree:
        """Download a tar of a mirror whose files have the Git hash ``tree``.

        ``members`` are paths of small files to read, of ``*`` every TOML file. Raises as
        :meth:`read_from_mirror`, and :class:`ChecksumError` for other files.
        """
        ...

    async def hash_project_file(self, path: str) -> MirroredFile:
        """Return the hash of a file of the project; its address is its digest in builds."""
        ...

    async def read_archive_member(self, mirror: str, path: str, sha256: str, member: str) -> bytes:
        """Return a file of a zip that was fetched from a mirror; of the project's if that is empty.

        Raises :class:`OutsideError` if it is not a zip or does not contain the file.
        """
        ...

    async def find_wheel(self, name: str, version: str) -> WheelFile | None:
        """Return the newest wheel of ``version`` (``1.25``; empty: any) on the Python index.

        None if the index has none that fits the base.
        """
        ...


class LockSection(Generic[Pin]):
    """A list of pins in the lock that a build function owns: how to resolve, check and show it.

    A build function registers one by its ``lock_section``; reading and writing the file, finding
    what is stale, and reporting changes follow from it.
    """

    name: ClassVar[str]
    """The field in the lockfile."""
    singular: ClassVar[str]
    """A pin in messages: ``locked file https://…``."""
    plural: ClassVar[str]
    """All of them in messages: ``HTTP files changed``."""

    def __init__(self, pin: type[Pin]) -> None:
        self.pin = pin

    def pins(self, lock: FunctionLock | None) -> tuple[Pin, ...]:
        """Return the section's pins in a lock."""
        pins = lock.sections.get(self.name, ()) if lock is not None else ()
        return tuple(pin for pin in pins if isinstance(pin, self.pin))

    def is_stale(self, environment: Environment, pins: tuple[Pin, ...]) -> bool:
        """Return whether ``pins`` no longer are what the environment asks for."""
        raise NotImplementedError

    def is_outdated(
        self, environment: Environment, pins: tuple[Pin, ...], digests: ProjectDigests
    ) -> bool:
        """Return whether ``pins`` are stale, also because of files of the project."""
        return self.is_stale(environment, pins)

    async def resolve(
        self, environment: Environment, pins: tuple[Pin, ...], resolver: SectionResolver
    ) -> tuple[Pin, ...]:
        """Return the pins of ``environment``, sorted; ``pins`` are kept if they may not change.

        An error should carry the span of the call that is to blame.
        """
        raise NotImplementedError

    def describe(self, pin: Pin) -> tuple[str, str]:
        """Return what identifies a pin, and its version in short, for a report of changes."""
        raise NotImplementedError

    def find_problem(self, pin: Pin) -> str:
        """Return what is wrong with a pin that was read from a file, or an empty string."""
        return ""
