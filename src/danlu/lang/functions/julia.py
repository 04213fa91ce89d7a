"""``install.julia``, ``install.julia_packages`` and ``config.julia_pkg_server``.

Few releases of distributions have Julia, so it comes from julialang.org unless the base's has it.
Packages come from a package server (https://pkgdocs.julialang.org/dev/protocol/) or a directory
with the same paths. They are installed into a depot of their own, with an environment that Julia
searches after the user's: ``using`` finds them, and ``Pkg`` does not change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from danlu.environment.archives import make_archive_vertex
from danlu.environment.lock_section import LockSection, SectionResolver
from danlu.environment.types import Declaration, Environment, GraphContext
from danlu.errors import DanluError, ResolveError, Span
from danlu.graph.ops import Files, Platform, Unresolved
from danlu.graph.types import Vertex, digest_of
from danlu.lang.arg_types import TEXT, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_url, strip_names
from danlu.lang.julia_depot import (
    DEPOT,
    MIRROR,
    REQUEST,
    LockedJuliaPackage,
    find_pin_problem,
    write_environment,
)
from danlu.lang.package_layers import group_packages
from danlu.lang.toolchain import (
    ArchiveContent,
    LanguageToolchain,
    LockedToolchain,
    VendorArchive,
    find_machine,
    make_install_function,
    predict_version,
)
from danlu.util.urls import strip_credentials


class JuliaToolchain(LanguageToolchain, frozen=True):
    """``install.julia(version)``."""

    title: ClassVar[str] = "Julia"
    section: ClassVar[str] = "julia"
    debs: ClassVar[tuple[str, ...]] = ("julia",)
    default_version: ClassVar[str] = "1.10.10"

    def find_archive(self, version: str, platform: Platform) -> VendorArchive | None:
        machine = find_machine(platform, self.title)
        directory = {"x86_64": "x64"}.get(machine, machine)
        minor = ".".join(version.split(".")[:2])
        path = f"linux/{directory}/{minor}/julia-{version}-linux-{machine}.tar.gz"
        return VendorArchive("julia", path, f"checksums/julia-{version}.sha256")

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        links = {"/usr/local/bin/julia": "../julia/bin/julia"}
        return ArchiveContent("/usr/local/julia", strip_components=1, links=links)


class JuliaPackageServer(Declaration, frozen=True):
    """``config.julia_pkg_server(url)``: used to resolve, and by ``Pkg`` in the environment."""

    url: str

    def mirrors(self) -> tuple[tuple[str, str], ...]:
        return ((MIRROR, self.url),)

    def variables(self) -> tuple[tuple[str, str], ...]:
        return (("JULIA_PKG_SERVER", strip_credentials(self.url)),)


class JuliaPackages(Declaration, frozen=True):
    """``install.julia_packages(names)``: ``Name``, or ``Name@1.2`` as in Julia's package prompt."""

    names: tuple[str, ...]

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        # Multiple calls are combined: the first makes the vertices of all.
        if context.environment.find(JuliaPackages) is not self:
            return ()
        if context.lock is None:
            names = tuple(sorted(find_requested_packages(context.environment)))
            op = Unresolved("Julia packages", names)
            return (Vertex(op, (), f"{len(names)} Julia packages", "julia", (self.span,)),)
        pins = JULIA_PACKAGES.pins(context.lock)
        spans = find_requested_packages(context.environment)
        vertices = {
            f"{pin.name} {pin.tree}": make_archive_vertex(
                pin.to_archive(),
                pin.directory,
                branch="julia",
                spans=(spans.get(pin.requested, self.span),),
            )
            for pin in pins
            if pin.kind != "standard"
        }
        files = Files(write_environment(pins), context.epoch)
        environment = Vertex(files, (), "Julia's environment", "julia", (self.span,))
        return (*group_packages(vertices), environment)

    def variables(self) -> tuple[tuple[str, str], ...]:
        # The first depot is written to. Julia adds its own in place of an empty one.
        return (
            ("JULIA_DEPOT_PATH", f"~/.julia:{DEPOT}:"),
            ("JULIA_LOAD_PATH", "@:@v#.#:@danlu:@stdlib"),
        )


def find_requested_packages(environment: Environment) -> dict[str, Span]:
    """Return what the build file names, with the lines."""
    requested: dict[str, Span] = {}
    for declaration in environment.find_all(JuliaPackages):
        for name in declaration.names:
            requested.setdefault(name, declaration.span)
    return requested


# -- the lock --------------------------------------------------------------------------------------


def digest_package_source(environment: Environment) -> str:
    """Return a short digest of what decides which Julia and which server packages are for."""
    server = strip_credentials(environment.mirrors().get(MIRROR, ""))
    declared = environment.find(JuliaToolchain)
    base, apt = environment.base, environment.apt_source
    source = [base.os, base.image, apt.source if apt else "", declared and declared.version]
    return digest_of(["julia", server, *source])[7:23]


class JuliaPackagePins(LockSection[LockedJuliaPackage]):
    """The Julia packages, with all that they need."""

    name = "julia_packages"
    singular = "Julia package"
    plural = "Julia packages"

    def is_stale(self, environment: Environment, pins: tuple[LockedJuliaPackage, ...]) -> bool:
        requested = {pin.requested for pin in pins if pin.requested}
        if requested != set(find_requested_packages(environment)):
            return True
        inputs = digest_package_source(environment)
        return any(pin.inputs != inputs for pin in pins)

    async def resolve(
        self,
        environment: Environment,
        pins: tuple[LockedJuliaPackage, ...],
        resolver: SectionResolver,
    ) -> tuple[LockedJuliaPackage, ...]:
        requested = find_requested_packages(environment)
        if not requested:
            return ()
        first = next(iter(requested.values()))
        declared = environment.find(JuliaToolchain)
        if declared is None:
            raise ResolveError(
                "install.julia_packages() needs a Julia whose version is known",
                hint='add install.julia(), or install.julia("1.10.10")',
                span=first,
            )
        try:
            julia = await predict_version(declared, resolver)
            is_fresh = not self.is_stale(environment, pins)
            may_change = any(resolver.may_change(pin.name) for pin in pins)
            if is_fresh and not may_change and all(pin.julia == julia for pin in pins):
                return pins
            from danlu.lang.julia_locker import JuliaPackageLocker

            inputs = digest_package_source(environment)
            locker = JuliaPackageLocker(list(requested), pins, resolver, julia=julia, inputs=inputs)
            return await locker.resolve()
        except DanluError as error:
            named = [span for name, span in requested.items() if f" {name} " in error.message]
            error.span = error.span or (named or [first])[0]
            raise

    def describe(self, pin: LockedJuliaPackage) -> tuple[str, str]:
        return pin.name, pin.version

    def find_problem(self, pin: LockedJuliaPackage) -> str:
        return find_pin_problem(pin)


JULIA_PACKAGES = JuliaPackagePins(LockedJuliaPackage)


# -- the functions ---------------------------------------------------------------------------------


def _declare_server(env: EnvironmentBuilder, call: BoundCall) -> None:
    check_url(call["url"], "config.julia_pkg_server", "url", ("http", "https"))
    server = JuliaPackageServer(call["url"].rstrip("/"), span=call.span)
    env.declare_once("config.julia_pkg_server", server)


def _declare_packages(env: EnvironmentBuilder, call: BoundCall) -> None:
    names = strip_names(call["name"], "install.julia_packages")
    for name in names:
        if not REQUEST.fullmatch(name):
            raise CallError(
                f"install.julia_packages(): invalid package '{name}'",
                hint='write the name of a registered package, such as "Example" or "Example@0.5"',
                argument="name",
            )
    if names:
        env.declare(JuliaPackages(names, span=call.span))


FUNCTIONS = (
    make_install_function(
        JuliaToolchain,
        "Install Julia: of the distribution if it has it, otherwise the archive of julialang.org.",
        versions="such as `1.11.7`; empty for the distribution's or 1.10.10",
        example="install.julia()",
    ),
    BuildFunction(
        "install.julia_packages",
        "Install Julia packages with all that they need, from a package server, each as a layer. "
        "Multiple calls are combined.",
        (
            Parameter(
                "name", TEXTS, "names of registered packages; `Example@0.5` for a version of one"
            ),
        ),
        declare=_declare_packages,
        lock_section=JULIA_PACKAGES,
        example='install.julia_packages(["JSON", "Example@0.5"])',
    ),
    BuildFunction(
        "config.julia_pkg_server",
        "Use a Julia package server, both to resolve and in the environment (`JULIA_PKG_SERVER`).",
        (Parameter("url", TEXT, "the server's URL"),),
        declare=_declare_server,
        unique=True,
        example='config.julia_pkg_server(url="https://julia.example.org")',
    ),
)
