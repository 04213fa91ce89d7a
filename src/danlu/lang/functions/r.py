"""R: the distribution's R, and packages of the distribution or CRAN.

A package comes from the distribution (``r-cran-NAME``) if that has a version that fits, otherwise
from CRAN: as source, built in the sandbox, one layer each. Dependencies are those of CRAN's index
(``src/contrib/PACKAGES``); CRAN has one version of each package there, so there is nothing to
choose between.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from danlu.environment.lock import SystemPackagesPin
from danlu.environment.lock_section import LockSection, SectionResolver, SystemVersion
from danlu.environment.types import Declaration, Environment, GraphContext
from danlu.errors import OutsideError, ResolveError, Span
from danlu.graph.ops import FileEntry, Merge, RPackage, Unresolved
from danlu.graph.types import Vertex, digest_of
from danlu.lang.arg_types import TEXT, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_url, strip_names
from danlu.lang.package_layers import group_packages
from danlu.util.deb_version import release_version
from danlu.util.suggest import did_you_mean
from danlu.util.urls import strip_credentials

#: "Writing R Extensions", section 1.1.1: letters, digits and dots, starting with a letter.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9.]*[A-Za-z0-9]")
_VERSION = re.compile(r"[0-9]+([.-][0-9]+)+")
_HEX = re.compile(r"[0-9a-f]{64}")
_DEPENDENCY = re.compile(r"([A-Za-z0-9.]+)\s*(?:\(\s*([<>=!]=?)\s*([0-9.-]+)\s*\))?")

#: The packages that are part of R itself ("R Installation and Administration", section 6).
_BASE_PACKAGES = frozenset(
    (
        *("R", "base", "compiler", "datasets", "graphics", "grDevices", "grid", "methods"),
        *("parallel", "splines", "stats", "stats4", "tcltk", "tools", "utils"),
    )
)

#: Indexes above this size in bytes are refused; CRAN's has 15 MB.
_MAX_INDEX_SIZE = 256 << 20


class RLanguage(Declaration, frozen=True):
    """``install.r_lang()``: R with its recommended packages, as the distribution packages it."""

    def system_packages(self) -> tuple[str, ...]:
        return ("r-base-core", "r-recommended")


class CranMirror(Declaration, frozen=True):
    """``config.cran_mirror(url)``: used to resolve and build, and written to the image."""

    url: str

    def mirrors(self) -> tuple[tuple[str, str], ...]:
        return (("cran", self.url),)

    def config_files(self) -> tuple[FileEntry, ...]:
        # R reads the site's profile before the user's (?Startup).
        url = strip_credentials(self.url).replace("\\", "\\\\").replace('"', '\\"')
        text = f'local({{\n  options(repos = c(CRAN = "{url}"))\n}})\n'
        return (FileEntry("/etc/R/Rprofile.site", content=text),)


class RPackages(Declaration, frozen=True):
    """``install.r_packages(names)``."""

    names: tuple[str, ...]

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        # Multiple calls are combined: the first makes the vertices of all.
        if context.environment.find(RPackages) is not self:
            return ()
        if context.lock is None:
            names = tuple(sorted(find_wanted_packages(context.environment)))
            op = Unresolved("R packages", names)
            return (Vertex(op, (), f"{len(names)} R packages", "r", (self.span,)),)
        return group_packages(make_package_vertices(context))


def make_package_vertices(context: GraphContext) -> dict[str, Vertex]:
    """Return a vertex for each locked CRAN package, by name, sorted."""
    assert context.system is not None
    pins = {pin.name: pin for pin in R_PACKAGES.pins(context.lock) if pin.source == "cran"}
    spans = find_wanted_packages(context.environment)
    vertices: dict[str, Vertex] = {}

    def make_vertex(pin: LockedRPackage) -> Vertex:
        if pin.name not in vertices:
            needed = sorted(_list_closure(pin, pins))
            below = [make_vertex(pins[name]) for name in needed]
            assert context.system is not None
            system = context.system
            stack = Vertex(Merge(), (system, *below), name="R library") if below else system
            op = RPackage(pin.name, pin.version, pin.sha256, context.epoch)
            span = spans.get(pin.name, next(iter(spans.values())))
            name = f"{pin.name} {pin.version} (R)"
            vertices[pin.name] = Vertex(op, (stack,), name, "r", (span,))
        return vertices[pin.name]

    for pin in pins.values():
        make_vertex(pin)
    return dict(sorted(vertices.items()))


def _list_closure(pin: LockedRPackage, pins: Mapping[str, LockedRPackage]) -> set[str]:
    """Return the CRAN packages that ``pin`` needs, directly or not."""
    needed: set[str] = set()
    pending = list(pin.requires)
    while pending:
        name = pending.pop()
        if name in pins and name not in needed and name != pin.name:
            needed.add(name)
            pending.extend(pins[name].requires)
    return needed


def find_wanted_packages(environment: Environment) -> dict[str, Span]:
    """Return the declared packages with the lines that name them."""
    wanted: dict[str, Span] = {}
    for declaration in environment.find_all(RPackages):
        for name in declaration.names:
            wanted.setdefault(name, declaration.span)
    return wanted


# -- the lock --------------------------------------------------------------------------------------


class LockedRPackage(SystemPackagesPin, frozen=True):
    """An R package: a distribution package, or a source package of CRAN.

    ``requires`` are the packages that one of CRAN needs, those of R itself left out;
    ``is_compiled`` means that it has C, C++ or Fortran code. ``packages`` are system packages that
    it needs. ``is_wanted`` means that the build file names it. ``inputs`` is the digest of what
    decides between distribution and CRAN.
    """

    name: str
    version: str
    source: Literal["apt", "cran"]
    inputs: str
    is_wanted: bool = False
    is_compiled: bool = False
    sha256: str = ""
    size: int = 0
    requires: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def system_packages(self) -> tuple[str, ...]:
        return self.packages


class _VersionRequirement(msgspec.Struct, frozen=True):
    """What a package asks of another: ``R (>= 3.5.0)``."""

    name: str
    operator: str = ""
    version: str = ""

    def accepts(self, version: str) -> bool:
        if not self.operator:
            return True
        have, wanted = _parse_version(version), _parse_version(self.version)
        return {
            ">=": have >= wanted,
            ">": have > wanted,
            "<=": have <= wanted,
            "<": have < wanted,
            "==": have == wanted,
            "!=": have != wanted,
        }.get(self.operator, True)

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.version}" if self.operator else self.name


class _CranPackage(msgspec.Struct, frozen=True):
    """A stanza of CRAN's index."""

    name: str
    version: str
    requires: tuple[_VersionRequirement, ...]
    is_compiled: bool

    @property
    def r_requirements(self) -> list[_VersionRequirement]:
        return [item for item in self.requires if item.name == "R"]


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.split(r"[.-]", text) if part.isdigit())


def read_index(text: str, r_version: str) -> dict[str, _CranPackage]:
    """Parse CRAN's ``PACKAGES`` (Debian control format).

    Of several stanzas of a package the newest that runs on ``r_version`` (empty: any) wins, or the
    newest if none does.
    """
    best: dict[str, tuple[bool, tuple[int, ...], _CranPackage]] = {}
    for stanza in re.split(r"\n\s*\n", text):
        # A continued line starts with white space.
        lines = re.sub(r"\n[ \t]+", " ", stanza).splitlines()
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        name, version = fields.get("Package", ""), fields.get("Version", "")
        if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
            continue
        requires = tuple(
            _VersionRequirement(match[1], match[2] or "", match[3] or "")
            for field in ("Depends", "Imports", "LinkingTo")
            for match in _DEPENDENCY.finditer(fields.get(field, ""))
        )
        compiled = fields.get("NeedsCompilation", "").lower() == "yes"
        package = _CranPackage(name, version, requires, compiled)
        fits = not r_version or all(item.accepts(r_version) for item in package.r_requirements)
        rank = (fits, _parse_version(version), package)
        if name not in best or rank[:2] > best[name][:2]:
            best[name] = rank
    return {name: rank[2] for name, rank in best.items()}


def _decompress_index(data: bytes) -> str:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        # A small answer of a mirror may expand to more than the memory.
        text = decompressor.decompress(data, _MAX_INDEX_SIZE)
    except zlib.error as error:
        raise OutsideError(f"CRAN's package index is damaged: {error}") from error
    if decompressor.unconsumed_tail:
        raise OutsideError("CRAN's package index is too large")
    return text.decode("utf-8", "replace")


class _PackageSelection:
    """The packages chosen so far, while dependencies are followed."""

    def __init__(
        self,
        environment: Environment,
        kept: Mapping[str, LockedRPackage],
        resolver: SectionResolver,
    ) -> None:
        self._environment = environment
        self._wanted = find_wanted_packages(environment)
        self._kept = kept
        self._resolver = resolver
        self._requirements: dict[str, list[tuple[str, _VersionRequirement]]] = {}
        self._available: dict[str, SystemVersion | None] = {}
        self._index: dict[str, _CranPackage] | None = None
        self._pins: dict[str, LockedRPackage] = {}
        self._has_system_r = False
        self._r_version = ""
        self._inputs = digest_package_source(environment)

    async def resolve(self) -> tuple[LockedRPackage, ...]:
        await self._find_r()
        pending = list(self._wanted)
        while pending:
            await self._query_distribution(pending)
            more: list[str] = []
            for name in dict.fromkeys(pending):
                more += await self._choose_package(name)
            pending = more
        return tuple(self._pins[name] for name in sorted(self._list_needed()))

    async def _find_r(self) -> None:
        """Decide whether R comes from the distribution; an image may have its own."""
        environment = self._environment
        found = (await self._resolver.find_system_versions(["r-base-core"])).get("r-base-core")
        declared = environment.find(RLanguage) is not None or bool(environment.base.os)
        if found is not None and (declared or found.is_installed):
            self._has_system_r = True
            self._r_version = release_version(found.version)

    async def _query_distribution(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._available]
        if unknown and self._has_system_r:
            debs = {name: f"r-cran-{name.lower()}" for name in unknown}
            found = await self._resolver.find_system_versions(sorted(debs.values()))
            self._available |= {name: found.get(deb) for name, deb in debs.items()}

    async def _choose_package(self, name: str) -> list[str]:
        """Choose a source of a package; return the packages to look at because of it."""
        needed = self._requirements.get(name, [])
        current = self._pins.get(name)
        if current is not None and all(item.accepts(current.version) for _, item in needed):
            return []
        deb = self._available.get(name)
        if deb is not None and all(
            item.accepts(release_version(deb.version)) for _, item in needed
        ):
            self._pins[name] = LockedRPackage(
                name=name,
                version=release_version(deb.version),
                source="apt",
                inputs=self._inputs,
                is_wanted=name in self._wanted,
                packages=("r-base-core", f"r-cran-{name.lower()}"),
            )
            return []
        kept = self._kept.get(name)
        if kept and kept.source == "cran" and all(item.accepts(kept.version) for _, item in needed):
            self._pins[name] = msgspec.structs.replace(kept, is_wanted=name in self._wanted)
            return [item for item in kept.requires if item not in self._pins]
        return await self._choose_from_cran(name)

    async def _choose_from_cran(self, name: str) -> list[str]:
        package = await self._find_on_cran(name)
        requires = [item for item in package.requires if item.name not in _BASE_PACKAGES]
        packages: tuple[str, ...] = ()
        if self._has_system_r:
            packages = ("r-base-core", "r-base-dev") if package.is_compiled else ("r-base-core",)
        path = f"src/contrib/{name}_{package.version}.tar.gz"
        try:
            file = await self._resolver.fetch_from_mirror("cran", path)
        except FileNotFoundError:
            raise OutsideError(
                f"the CRAN mirror lists {name} {package.version}, but does not have the file",
                hint="its index may be out of date; use another one: config.cran_mirror(url=…)",
            ) from None
        self._pins[name] = LockedRPackage(
            name=name,
            version=package.version,
            source="cran",
            inputs=self._inputs,
            is_wanted=name in self._wanted,
            is_compiled=package.is_compiled,
            sha256=file.sha256,
            size=file.size,
            requires=tuple(sorted({item.name for item in requires})),
            packages=packages,
        )
        for item in requires:
            self._requirements.setdefault(item.name, []).append((name, item))
        return [item.name for item in requires]

    async def _find_on_cran(self, name: str) -> _CranPackage:
        """Return a package of the index; raise with the reason if it cannot be used."""
        index = await self._load_index()
        users = [user for user, _ in self._requirements.get(name, [])]
        because = f", which {users[0]} needs" if users else ""
        if name not in index:
            distribution = " or in the distribution" if self._has_system_r else ""
            raise ResolveError(
                f"R package {name} not found on CRAN{distribution}{because}",
                hint=did_you_mean(name, index, otherwise="check the spelling; case matters"),
            )
        package = index[name]
        for user, item in self._requirements.get(name, []):
            if not item.accepts(package.version):
                raise ResolveError(
                    f"{user} needs {item}, but the CRAN mirror has {name} {package.version}",
                    hint="use a mirror that is up to date: config.cran_mirror(url=…)",
                )
        for item in package.r_requirements:
            if self._r_version and not item.accepts(self._r_version):
                base = self._environment.base
                raise ResolveError(
                    f"{name} {package.version} needs {item}, but {base.os or base.image} has R "
                    f"{self._r_version}{because}",
                    hint="use a newer base, or a CRAN snapshot of that time as "
                    "config.cran_mirror(url=…)",
                )
        return package

    async def _load_index(self) -> dict[str, _CranPackage]:
        if self._index is None:
            try:
                data = await self._resolver.read_from_mirror("cran", "src/contrib/PACKAGES.gz")
                text = _decompress_index(data)
            except FileNotFoundError:
                text = await self._load_plain_index()
            self._index = read_index(text, self._r_version)
        return self._index

    async def _load_plain_index(self) -> str:
        try:
            data = await self._resolver.read_from_mirror("cran", "src/contrib/PACKAGES")
        except FileNotFoundError:
            raise OutsideError(
                "the CRAN mirror has no package index src/contrib/PACKAGES",
                hint="check the URL of config.cran_mirror: the directory that contains src/",
            ) from None
        return data.decode("utf-8", "replace")

    def _list_needed(self) -> set[str]:
        """Return what the wanted packages need: a package that was replaced may need less."""
        needed: set[str] = set()
        pending = list(self._wanted)
        while pending:
            name = pending.pop()
            if name in self._pins and name not in needed:
                needed.add(name)
                pending.extend(self._pins[name].requires)
        return needed


def digest_package_source(environment: Environment) -> str:
    """Return a short digest of what decides where packages come from."""
    mirror = strip_credentials(environment.mirrors().get("cran", ""))
    base = environment.base
    source = environment.apt_source.source if environment.apt_source else ""
    declared = environment.find(RLanguage) is not None
    return digest_of(["r", mirror, base.os, base.image, source, declared])[7:23]


class RPackagePins(LockSection[LockedRPackage]):
    """The R packages, with all that those of CRAN need."""

    name = "r_packages"
    singular = "R package"
    plural = "R packages"

    def is_stale(self, environment: Environment, pins: tuple[LockedRPackage, ...]) -> bool:
        if {pin.name for pin in pins if pin.is_wanted} != set(find_wanted_packages(environment)):
            return True
        inputs = digest_package_source(environment)
        return any(pin.inputs != inputs for pin in pins)

    async def resolve(
        self,
        environment: Environment,
        pins: tuple[LockedRPackage, ...],
        resolver: SectionResolver,
    ) -> tuple[LockedRPackage, ...]:
        wanted = find_wanted_packages(environment)
        if not wanted:
            return ()
        inputs = digest_package_source(environment)
        kept = {
            pin.name: pin
            for pin in pins
            if pin.inputs == inputs and not resolver.may_change(pin.name)
        }
        try:
            return await _PackageSelection(environment, kept, resolver).resolve()
        except (OutsideError, ResolveError) as error:
            named = [span for name, span in wanted.items() if name in error.message]
            error.span = error.span or (named or list(wanted.values()))[0]
            if "mirrors.cran" in error.hint:
                error.hint = 'use a mirror that can be reached: config.cran_mirror(url="https://…")'
            raise

    def describe(self, pin: LockedRPackage) -> tuple[str, str]:
        return pin.name, pin.version

    def find_problem(self, pin: LockedRPackage) -> str:
        if not _NAME.fullmatch(pin.name) or not _VERSION.fullmatch(pin.version):
            return f"R package {pin.name} has an invalid name or version"
        if pin.source == "cran" and not _HEX.fullmatch(pin.sha256):
            return f"R package {pin.name} has an invalid sha256"
        return ""


R_PACKAGES = RPackagePins(LockedRPackage)


# -- the functions ---------------------------------------------------------------------------------


def _declare_r(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("install.r_lang", RLanguage(span=call.span))


def _declare_packages(env: EnvironmentBuilder, call: BoundCall) -> None:
    names = strip_names(call["name"], "install.r_packages")
    for name in _list_invalid_names(names):
        raise CallError(
            f"install.r_packages(): invalid package name '{name}'",
            hint="use the name of a CRAN package such as `ggplot2`, without a version",
            argument="name",
        )
    if names:
        env.declare(RPackages(names, span=call.span))


def _list_invalid_names(names: Sequence[str]) -> Iterator[str]:
    return (name for name in names if not _NAME.fullmatch(name))


def _declare_mirror(env: EnvironmentBuilder, call: BoundCall) -> None:
    check_url(call["url"], "config.cran_mirror", "url", ("http", "https"))
    env.declare_once("config.cran_mirror", CranMirror(call["url"].rstrip("/"), span=call.span))


FUNCTIONS = (
    BuildFunction(
        "install.r_lang",
        "Install R and its recommended packages, as the distribution packages them.",
        declare=_declare_r,
        versions=("v1",),
        unique=True,
        example="install.r_lang()",
    ),
    BuildFunction(
        "install.r_packages",
        "Install R packages: from the distribution (`r-cran-NAME`) if it has a version that fits, "
        "otherwise from CRAN, built from source in the sandbox. Multiple calls are combined.",
        (Parameter("name", TEXTS, "names of CRAN packages"),),
        declare=_declare_packages,
        lock_section=R_PACKAGES,
        example='install.r_packages(["ggplot2", "data.table"])',
    ),
    BuildFunction(
        "config.cran_mirror",
        "Use a mirror of CRAN, both to resolve and inside the environment.",
        (Parameter("url", TEXT, "the mirror's URL"),),
        declare=_declare_mirror,
        unique=True,
        example='config.cran_mirror(url="https://cran.example.org")',
    ),
)
