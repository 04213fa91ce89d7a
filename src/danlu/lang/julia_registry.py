"""Read Julia's package registries, and select compatible versions of packages.

A registry is a tree of TOML files (https://pkgdocs.julialang.org/v1/registries/). Each package has
its versions (``Versions.toml``) and, for ranges of its versions, its dependencies (``Deps.toml``)
and their allowed versions (``Compat.toml``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, Resolver

from danlu.errors import OutsideError, ResolveError

if TYPE_CHECKING:
    from resolvelib.structs import Matches, RequirementInformation

_VERSION = re.compile(
    r"v?([0-9]+)\.([0-9]+)\.([0-9]+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?"
)
_BOUND = re.compile(r"v?[0-9]+(\.[0-9]+){0,2}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TREE = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

_MAX_ROUNDS = 100_000

#: Packages that are part of Julia, with the first release that has them and the first that does not
#: any more. Some are also in the registry, for other releases.
_STANDARD_LIBRARY: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    **dict.fromkeys(
        (
            *("Base64", "CRC32c", "Dates", "DelimitedFiles", "Distributed", "FileWatching"),
            *("Future", "InteractiveUtils", "LibGit2", "Libdl", "LinearAlgebra", "Logging"),
            *("Markdown", "Mmap", "Pkg", "Printf", "Profile", "REPL", "Random", "SHA"),
            *("Serialization", "SharedArrays", "Sockets", "SparseArrays", "Statistics", "Test"),
            *("UUIDs", "Unicode"),
        ),
        ((0, 7), (99, 0)),
    ),
    "SuiteSparse": ((0, 7), (1, 9)),
    **dict.fromkeys(
        (
            *("ArgTools", "Artifacts", "Downloads", "LazyArtifacts", "LibCURL", "NetworkOptions"),
            *("TOML", "Tar", "CompilerSupportLibraries_jll", "GMP_jll", "LLVMLibUnwind_jll"),
            *("LibCURL_jll", "LibGit2_jll", "LibSSH2_jll", "LibUV_jll", "LibUnwind_jll"),
            *("MPFR_jll", "MozillaCACerts_jll", "OpenBLAS_jll", "OpenLibm_jll", "PCRE2_jll"),
            *("SuiteSparse_jll", "Zlib_jll", "dSFMT_jll", "libLLVM_jll", "nghttp2_jll"),
            "p7zip_jll",
        ),
        ((1, 6), (99, 0)),
    ),
    "MbedTLS_jll": ((1, 6), (1, 12)),
    "libblastrampoline_jll": ((1, 7), (99, 0)),
    "LLD_jll": ((1, 9), (99, 0)),
    "StyledStrings": ((1, 11), (99, 0)),
    "JuliaSyntaxHighlighting": ((1, 12), (99, 0)),
    "OpenSSL_jll": ((1, 12), (99, 0)),
}


class JuliaVersion(NamedTuple):
    """A version, ordered like Julia's ``VersionNumber``; ``text`` is as written in the registry."""

    release: tuple[int, int, int]
    prerelease: tuple[Any, ...]
    build: tuple[Any, ...]
    text: str


@lru_cache(maxsize=4096)
def parse_version(text: str) -> JuliaVersion | None:
    """Parse ``1.2.3-rc1+4``; None if it is not a version."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    release = (int(match[1]), int(match[2]), int(match[3]))
    # A release is later than its prereleases, and a build later than the version without one.
    prerelease = (0, *_split_identifiers(match[4])) if match[4] else (1,)
    build = _split_identifiers(match[5]) if match[5] else ()
    return JuliaVersion(release, prerelease, build, text)


def _split_identifiers(text: str) -> tuple[tuple[int, int, str], ...]:
    parts = text.split(".")
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


class VersionRange(NamedTuple):
    """A range such as ``1.2-1.5`` or ``1``. A bound is a prefix of versions, empty for none."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def includes(self, version: JuliaVersion) -> bool:
        """Return whether a version is in the range; of prereleases the release counts."""
        release = version.release
        below = release[: len(self.lower)] < self.lower
        return not below and release[: len(self.upper)] <= self.upper

    def __str__(self) -> str:
        lower, upper = (".".join(map(str, bound)) or "*" for bound in self)
        return lower if lower == upper else f"{lower}-{upper}"


@lru_cache(maxsize=4096)
def parse_range(text: str) -> VersionRange:
    """Parse a range of a registry; raises :class:`ValueError`."""
    bounds = []
    for part in text.split("-"):
        bound = part.strip()
        if bound != "*" and not _BOUND.fullmatch(bound):
            raise ValueError(f"invalid version range {text!r}")
        bounds.append(() if bound == "*" else tuple(map(int, bound.lstrip("v").split("."))))
    if len(bounds) > 2:
        raise ValueError(f"invalid version range {text!r}")
    return VersionRange(bounds[0], bounds[-1])


def is_standard(name: str, julia: JuliaVersion) -> bool:
    """Return whether a package is part of a release of Julia."""
    first, end = _STANDARD_LIBRARY.get(name, ((99, 0), (99, 0)))
    return first <= julia.release[:2] < end


class JuliaRequirement(msgspec.Struct, frozen=True):
    """A package whose version must be in one of the ranges, or any version without ranges."""

    name: str
    uuid: str
    ranges: tuple[VersionRange, ...] = ()

    def accepts(self, version: JuliaVersion) -> bool:
        """Return whether a version is in one of the ranges."""
        return not self.ranges or any(item.includes(version) for item in self.ranges)

    def __str__(self) -> str:
        return f"{self.name} {', '.join(map(str, self.ranges))}".strip()


class RegisteredPackage:
    """A package of a registry."""

    def __init__(self, name: str, uuid: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.name = name
        self.uuid = uuid
        self._tables = tables

    @cached_property
    def versions(self) -> dict[JuliaVersion, str]:
        """The versions that are not yanked, newest first, with their tree hashes."""
        found = {}
        for text, fields in self._tables["Versions"].items():
            version, tree = parse_version(text), str(fields.get("git-tree-sha1", ""))
            if version is not None and _TREE.fullmatch(tree) and not fields.get("yanked"):
                found[version] = tree
        return dict(sorted(found.items(), reverse=True))

    def list_requirements(
        self, version: JuliaVersion, *, weak: bool = False
    ) -> list[JuliaRequirement]:
        """Return the dependencies of a version, or with ``weak`` its weak dependencies.

        A weak dependency restricts the version of a package that is installed for another reason.
        """
        prefix = "Weak" if weak else ""
        uuids = self._merge_ranges(f"{prefix}Deps", version)
        ranges = self._merge_ranges(f"{prefix}Compat", version)
        return [
            JuliaRequirement(name, str(uuid), _parse_ranges(ranges.get(name, ())))
            for name, uuid in sorted(uuids.items())
            if _NAME.fullmatch(name) and _UUID.fullmatch(str(uuid))
        ]

    def supports_julia(self, version: JuliaVersion, julia: JuliaVersion) -> bool:
        """Return whether a version runs on a release of Julia."""
        ranges = _parse_ranges(self._merge_ranges("Compat", version).get("julia", ()))
        return not ranges or any(item.includes(julia) for item in ranges)

    def _merge_ranges(self, table: str, version: JuliaVersion) -> dict[str, Any]:
        """Return the entries of all ranges of a table that contain a version."""
        merged: dict[str, Any] = {}
        for text, entries in self._tables[table].items():
            if parse_range(text).includes(version):
                merged.update(entries)
        return merged


def _parse_ranges(value: object) -> tuple[VersionRange, ...]:
    texts = [value] if isinstance(value, str) else value
    return tuple(parse_range(str(text)) for text in texts) if isinstance(texts, Iterable) else ()


class JuliaRegistry:
    """A registry; its files are parsed on demand."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._packages: dict[str, RegisteredPackage] = {}
        listed = self._read_table("Registry.toml", required=True).get("packages", {})
        self._paths: dict[str, tuple[str, str]] = {}
        self._uuids: dict[str, list[str]] = {}
        for uuid, fields in listed.items() if isinstance(listed, dict) else ():
            name, path = str(fields.get("name", "")), str(fields.get("path", ""))
            if _UUID.fullmatch(uuid) and _NAME.fullmatch(name):
                self._paths[uuid] = (name, path)
                self._uuids.setdefault(name, []).append(uuid)

    @property
    def names(self) -> Iterable[str]:
        """The names of all packages."""
        return self._uuids

    def find_uuids(self, name: str) -> Sequence[str]:
        """Return the UUIDs of the packages with this name."""
        return self._uuids.get(name, ())

    def find_package(self, uuid: str) -> RegisteredPackage | None:
        """Return a package, None if it is not registered.

        Raises :class:`OutsideError` if its files are invalid.
        """
        if uuid not in self._paths:
            return None
        if uuid not in self._packages:
            name, path = self._paths[uuid]
            tables = {
                table: self._read_table(f"{path}/{table}.toml", required=table == "Versions")
                for table in ("Versions", "Deps", "Compat", "WeakDeps", "WeakCompat")
            }
            for table, entries in tables.items():
                if not all(isinstance(fields, dict) for fields in entries.values()):
                    raise OutsideError(f"the Julia registry has an invalid {path}/{table}.toml")
            self._packages[uuid] = RegisteredPackage(name, uuid, tables)
        return self._packages[uuid]

    def _read_table(self, path: str, *, required: bool = False) -> dict[str, Any]:
        data = self._files.get(path)
        if data is None:
            if required:
                raise OutsideError(f"the Julia registry has no {path}")
            return {}
        try:
            return tomllib.loads(data.decode())
        except ValueError as error:
            raise OutsideError(f"the Julia registry has an invalid {path}: {error}") from error


class SelectedPackage(NamedTuple):
    """A version of a package."""

    package: RegisteredPackage
    version: JuliaVersion

    @property
    def tree(self) -> str:
        """The hash of its files."""
        return self.package.versions[self.version]


class PackageUniverse:
    """The packages of all registries that are available to a release of Julia."""

    def __init__(self, registries: Sequence[JuliaRegistry], julia: JuliaVersion) -> None:
        self.registries = registries
        self.julia = julia

    def find_package(self, uuid: str) -> RegisteredPackage | None:
        """Return a package of the first registry that has it."""
        found = (registry.find_package(uuid) for registry in self.registries)
        return next((package for package in found if package is not None), None)

    def list_requirements(
        self, selected: SelectedPackage, *, weak: bool = False
    ) -> list[JuliaRequirement]:
        """Return the dependencies of a package that are not part of Julia."""
        listed = selected.package.list_requirements(selected.version, weak=weak)
        return [item for item in listed if not self.is_part_of_julia(item)]

    def is_part_of_julia(self, requirement: JuliaRequirement) -> bool:
        """Return whether a package comes with Julia and need not be installed."""
        # A package without a registry must be a part of Julia that _STANDARD_LIBRARY lacks.
        return is_standard(requirement.name, self.julia) or not any(
            registry.find_package(requirement.uuid) for registry in self.registries
        )


class _PackageProvider(AbstractProvider[JuliaRequirement, SelectedPackage, str]):
    """The provider for resolvelib.

    ``kept`` are the preferred versions by UUID. ``present`` are the UUIDs of packages whose
    versions weak dependencies restrict.
    """

    def __init__(
        self, universe: PackageUniverse, kept: Mapping[str, str], present: frozenset[str]
    ) -> None:
        self._universe = universe
        self._kept = kept
        self._present = present

    def identify(self, requirement_or_candidate: JuliaRequirement | SelectedPackage) -> str:
        item = requirement_or_candidate
        return item.uuid if isinstance(item, JuliaRequirement) else item.package.uuid

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, SelectedPackage],
        candidates: Mapping[str, Iterator[SelectedPackage]],
        information: Mapping[
            str, Iterator[RequirementInformation[JuliaRequirement, SelectedPackage]]
        ],
        backtrack_causes: Sequence[RequirementInformation[JuliaRequirement, SelectedPackage]],
    ) -> tuple[bool, str]:
        causes = {cause.requirement.uuid for cause in backtrack_causes}
        return identifier not in causes, identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[JuliaRequirement]],
        incompatibilities: Mapping[str, Iterator[SelectedPackage]],
    ) -> Matches[SelectedPackage]:
        package = self._universe.find_package(identifier)
        if package is None:
            return []
        wanted = list(requirements[identifier])
        excluded = {item.version for item in incompatibilities[identifier]}
        fitting = [
            SelectedPackage(package, version)
            for version in package.versions
            if version not in excluded
            and all(item.accepts(version) for item in wanted)
            and package.supports_julia(version, self._universe.julia)
        ]
        kept = self._kept.get(identifier)
        return sorted(fitting, key=lambda item: item.version.text != kept)

    def is_satisfied_by(self, requirement: JuliaRequirement, candidate: SelectedPackage) -> bool:
        return requirement.accepts(candidate.version)

    def get_dependencies(self, candidate: SelectedPackage) -> list[JuliaRequirement]:
        weak = self._universe.list_requirements(candidate, weak=True)
        needed = [item for item in weak if item.uuid in self._present]
        return [*self._universe.list_requirements(candidate), *needed]


def select_packages(
    universe: PackageUniverse, wanted: Sequence[JuliaRequirement], kept: Mapping[str, str]
) -> dict[str, SelectedPackage]:
    """Select a version of each required package, by UUID.

    ``kept`` are versions by UUID that are preferred to newer ones. Raises :class:`ResolveError`
    with the conflicting requirements.
    """
    present: frozenset[str] = frozenset()
    while True:
        provider = _PackageProvider(universe, kept, present)
        try:
            resolver: Resolver[JuliaRequirement, SelectedPackage, str] = Resolver(
                provider, BaseReporter()
            )
            mapping = dict(resolver.resolve(wanted, max_rounds=_MAX_ROUNDS).mapping)
        except ResolutionImpossible as error:
            raise _describe_conflict(error.causes, universe) from error
        except ValueError as error:
            raise OutsideError(f"the Julia registry is invalid: {error}") from error
        # Which weak dependencies apply is known only after resolving: resolve again with those that
        # the result violates.
        broken = {
            item.uuid
            for selected in mapping.values()
            for item in universe.list_requirements(selected, weak=True)
            if item.uuid in mapping and not item.accepts(mapping[item.uuid].version)
        }
        if broken <= present:
            return mapping
        present |= broken


def _describe_conflict(
    causes: Iterable[RequirementInformation[JuliaRequirement, SelectedPackage]],
    universe: PackageUniverse,
) -> ResolveError:
    reasons = []
    for requirement, parent in causes:
        user = f"{parent.package.name} {parent.version.text}" if parent else "the build file"
        reasons.append(f"{user} needs {requirement}")
        package = universe.find_package(requirement.uuid)
        fitting = (
            [item for item in package.versions if requirement.accepts(item)] if package else []
        )
        if (
            package
            and fitting
            and not any(package.supports_julia(version, universe.julia) for version in fitting)
        ):
            reasons.append(f"no such {package.name} supports Julia {universe.julia.text}")
    names = sorted({cause.requirement.name for cause in causes})
    return ResolveError(
        f"no versions of the Julia packages fit together: {', '.join(names)}",
        details=tuple(dict.fromkeys(reasons)),
        hint='use another version of Julia, or name versions: install.julia_packages(["Name@1.2"])',
    )
