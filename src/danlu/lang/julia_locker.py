"""Choose versions of Julia packages on a package server, and pin their files.

Imported only to lock, because the solver takes time to load.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence

from danlu.environment.lock_section import HashedTree, SectionResolver
from danlu.errors import OutsideError, ResolveError
from danlu.lang.julia_artifacts import ARTIFACT_FILES, select_artifacts
from danlu.lang.julia_depot import (
    EXTENSION,
    LINK,
    MIRROR,
    NAME_PATTERN,
    UUID_PATTERN,
    LockedJuliaPackage,
    locate_package,
    split_request,
)
from danlu.lang.julia_registry import (
    JuliaRegistry,
    JuliaRequirement,
    JuliaVersion,
    PackageUniverse,
    SelectedPackage,
    is_standard,
    parse_range,
    parse_version,
    select_packages,
)
from danlu.lang.toolchain import find_machine
from danlu.util.suggest import did_you_mean

_NAME = re.compile(NAME_PATTERN)
_REGISTRY = re.compile(rf"/registry/({UUID_PATTERN})/([0-9a-f]{{40}})")
_PROJECT_FILES = ("JuliaProject.toml", "Project.toml")


class JuliaPackageLocker:
    """Choose packages for one environment, and pin their files.

    ``requested`` is what the build file names, ``julia`` the release that it is for, ``inputs`` the
    digest to write to each pin.
    """

    def __init__(
        self,
        requested: Sequence[str],
        pins: Sequence[LockedJuliaPackage],
        resolver: SectionResolver,
        *,
        julia: str,
        inputs: str,
    ) -> None:
        self._requested = requested
        self._old = {pin.tree: pin for pin in pins}
        self._resolver = resolver
        self._julia = julia
        self._inputs = inputs
        self._artifacts: dict[str, str] = {}

    async def resolve(self) -> tuple[LockedJuliaPackage, ...]:
        """Return the pins; raise :class:`ResolveError` if no versions go together."""
        julia = parse_version(self._julia)
        if julia is None:
            raise ResolveError(
                f"Julia packages need an exact version of Julia, not {self._julia}",
                hint='use an exact version, such as install.julia("1.10.10")',
            )
        standard = {
            request: name
            for request in self._requested
            if is_standard(name := split_request(request)[0], julia)
        }
        others = [request for request in self._requested if request not in standard]
        found = [
            LockedJuliaPackage(
                name, self._julia, "standard", self._inputs, self._julia, requested=request
            )
            for request, name in standard.items()
        ]
        if others:
            universe = PackageUniverse(await self._fetch_registries(), julia)
            wanted = {
                request: _find_requirement(request, universe.registries) for request in others
            }
            kept = {
                pin.uuid: pin.version
                for pin in self._old.values()
                if pin.uuid and not self._resolver.may_change(pin.name)
            }
            selected = select_packages(universe, list(wanted.values()), kept)
            requests = {requirement.uuid: request for request, requirement in wanted.items()}
            for uuid, package in selected.items():
                found.append(await self._pin_package(package, requests.get(uuid, ""), julia))
        for tree, name in self._artifacts.items():
            found.append(await self._pin_artifact(tree, name))
        return tuple(sorted(found, key=lambda pin: (pin.kind, pin.name, pin.tree)))

    async def _fetch_registries(self) -> list[JuliaRegistry]:
        try:
            text = await self._resolver.read_from_mirror(MIRROR, "registries")
        except FileNotFoundError:
            raise OutsideError(
                "the Julia package server lists no registries",
                hint="check the URL of config.julia_pkg_server, or [mirrors.julia-packages]",
            ) from None
        listed = [
            match
            for line in text.decode("utf-8", "replace").splitlines()
            if (match := _REGISTRY.fullmatch(line.strip()))
        ]
        if not listed:
            raise OutsideError("the Julia package server's list of registries is invalid or empty")
        registries = []
        for match in listed:
            path = match[0].lstrip("/")
            tree = await self._fetch_tree(path, match[2], ("*",), f"registry {match[1]}")
            registries.append(JuliaRegistry(tree.files))
        return registries

    async def _fetch_tree(
        self, path: str, tree: str, members: Sequence[str], name: str
    ) -> HashedTree:
        try:
            return await self._resolver.fetch_tree(MIRROR, path, tree, members)
        except FileNotFoundError:
            raise OutsideError(
                f"the Julia package server lists {name}, but does not have the file {path}",
                hint="use another server: config.julia_pkg_server(url=…)",
            ) from None

    async def _pin_package(
        self, selected: SelectedPackage, requested: str, julia: JuliaVersion
    ) -> LockedJuliaPackage:
        package, version = selected
        name = f"{package.name} {version.text}"
        path = locate_package(package.uuid, selected.tree)
        members = (*_PROJECT_FILES, *ARTIFACT_FILES)
        content = await self._fetch_tree(path, selected.tree, members, name)
        if "deps/build.jl" in content.paths:
            raise ResolveError(
                f"{name} runs a build script (deps/build.jl) when it is installed, which danlu "
                "does not do",
                hint="install it with a step: "
                f'run([\'julia -e "using Pkg; Pkg.add(\\"{package.name}\\")"\'])',
            )
        artifacts: dict[str, str] = {}
        for file in ARTIFACT_FILES:
            if file in content.files and not artifacts:
                text = content.files[file].decode("utf-8", "replace")
                artifacts = select_artifacts(text, self._list_platform_tags(), name=name)
        self._artifacts |= {tree: artifact for artifact, tree in artifacts.items()}
        weak, extensions = _read_extensions(content.files)
        return LockedJuliaPackage(
            package.name,
            version.text,
            "package",
            self._inputs,
            self._julia,
            requested=requested,
            uuid=package.uuid,
            tree=selected.tree,
            sha256=content.sha256,
            size=content.size,
            dependencies=_write_links(package.list_requirements(version)),
            weak_dependencies=weak,
            extensions=extensions,
            artifacts=tuple(sorted(artifacts.values())),
        )

    async def _pin_artifact(self, tree: str, name: str) -> LockedJuliaPackage:
        content = await self._fetch_tree(f"artifact/{tree}", tree, (), f"the artifact {name}")
        label = name if _NAME.fullmatch(name) else "artifact"
        return LockedJuliaPackage(
            label,
            tree[:8],
            "artifact",
            self._inputs,
            self._julia,
            tree=tree,
            sha256=content.sha256,
            size=content.size,
        )

    def _list_platform_tags(self) -> dict[str, str]:
        return {
            "arch": find_machine(self._resolver.platform, "Julia"),
            "os": "linux",
            "libc": "glibc",
            "cxxstring_abi": "cxx11",
            "libgfortran_version": "5.0.0",
            "julia_version": self._julia,
        }


def _find_requirement(request: str, registries: Sequence[JuliaRegistry]) -> JuliaRequirement:
    """Return the package that the build file names; raise :class:`ResolveError` if none is it."""
    name, version = split_request(request)
    uuids = {uuid for registry in registries for uuid in registry.find_uuids(name)}
    if not uuids:
        names = {known for registry in registries for known in registry.names}
        raise ResolveError(
            f"Julia package {name} not found in the server's registries",
            hint=did_you_mean(name, names, otherwise="check the spelling; case matters"),
        )
    if len(uuids) > 1:
        raise ResolveError(
            f"several Julia packages are named {name}: {', '.join(sorted(uuids))}",
            hint="use a server with one of their registries: config.julia_pkg_server(url=…)",
        )
    uuid = uuids.pop()
    ranges = (parse_range(version),) if version else ()
    requirement = JuliaRequirement(name, uuid, ranges)
    packages = [registry.find_package(uuid) for registry in registries]
    known_versions = [item for package in packages if package for item in package.versions]
    if not any(requirement.accepts(item) for item in known_versions):
        newest = ", ".join(item.text for item in known_versions[:3])
        raise ResolveError(
            f"Julia package {name} {version} not found".replace("  ", " "),
            hint=f"its newest versions are {newest}" if newest else "it has no released version",
        )
    return requirement


def _write_links(requirements: Sequence[JuliaRequirement]) -> tuple[str, ...]:
    return tuple(sorted(f"{item.name}={item.uuid}" for item in requirements))


def _read_extensions(files: Mapping[str, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a package's weak dependencies and extensions, as its project file has them."""
    text = next((files[name] for name in _PROJECT_FILES if name in files), b"")
    try:
        project = tomllib.loads(text.decode())
    except ValueError:
        return (), ()  # Julia itself does not read it either
    weak, extensions = project.get("weakdeps"), project.get("extensions")
    if not isinstance(weak, dict) or not isinstance(extensions, dict):
        return (), ()
    links = tuple(sorted(f"{name}={uuid}" for name, uuid in weak.items()))
    lists = {
        name: [triggers] if isinstance(triggers, str) else triggers
        for name, triggers in extensions.items()
    }
    named = tuple(sorted(f"{name}={'+'.join(map(str, found))}" for name, found in lists.items()))
    if not all(map(LINK.fullmatch, links)) or not all(map(EXTENSION.fullmatch, named)):
        return (), ()
    return links, named
