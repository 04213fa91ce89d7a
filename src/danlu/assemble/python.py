"""Python: the virtual environment, and a layer for each wheel (D4)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from danlu.assemble.layout import VENV, scheme_of
from danlu.environment.lock import FunctionLock, LockedPackage, LockedPython
from danlu.environment.names import name_of, normalised
from danlu.environment.needs import python_needs
from danlu.environment.types import Environment, PythonPackages
from danlu.errors import Span
from danlu.graph import (
    BuildWheel,
    FileEntry,
    Files,
    Op,
    Scheme,
    Squash,
    Unresolved,
    Vertex,
    Wheel,
    WheelSource,
)

__all__ = ["GROUP_ABOVE", "LARGE", "grouped", "package_vertices", "venv_vertex"]

#: Up to so many wheels each has a layer of its own (container engines stop at 127 layers).
GROUP_ABOVE = 100

#: A wheel file of so many bytes is never grouped.
LARGE = 4 << 20

#: On average so many small wheels make a group.
_GROUP_SIZE = 16


def venv_vertex(python: LockedPython, epoch: int, *, visible_base: bool) -> Vertex:
    """The files of an empty virtual environment.

    ``visible_base`` lets it see the packages that the base image brought
    (``include-system-site-packages``, PEP 405).
    """
    scheme = scheme_of(python)
    home = python.executable.rsplit("/", 1)[0]
    visible = "true" if visible_base else "false"
    config = (
        f"home = {home}\ninclude-system-site-packages = {visible}\nversion = {python.version}\n"
    )
    links = [("python", python.executable), ("python3", "python")]
    links.append((f"python{scheme.version}", "python"))
    entries = [
        FileEntry(VENV, "dir", mode=0o755),
        FileEntry(f"{VENV}/bin", "dir", mode=0o755),
        *(FileEntry(f"{VENV}/bin/{name}", "link", target=target) for name, target in links),
        FileEntry(f"{VENV}/{scheme.site_packages}", "dir", mode=0o755),
        FileEntry(f"{VENV}/lib64", "link", target="lib"),
        FileEntry(f"{VENV}/pyvenv.cfg", content=config),
    ]
    name = f"python {python.version} in {VENV}"
    return Vertex(Files(tuple(entries), epoch), name=name, branch="python")


def package_vertices(
    environment: Environment, lock: FunctionLock | None, system: Vertex
) -> tuple[Vertex, ...]:
    """A vertex for each Python package, by normalised name; small ones grouped above a number.

    ``system`` is where source distributions are built.
    """
    if lock is None:
        names = [name for one in python_needs(environment) for name in _described(one)]
        if not names:
            return ()
        op = Unresolved("Python packages", tuple(names))
        label = f"{len(names)} Python requirements"
        return (Vertex(op, (), label, "python", _spans(environment, "")),)
    if lock.python is None:
        return ()
    scheme = scheme_of(lock.python)
    ordered = sorted(lock.packages, key=lambda one: normalised(one.name))
    pairs = [
        (one, _package_vertex(environment, one, scheme, lock.base.epoch, system)) for one in ordered
    ]
    return grouped(pairs)


def grouped(pairs: Sequence[tuple[LockedPackage, Vertex]]) -> tuple[Vertex, ...]:
    """The vertices of ``pairs`` (sorted by name), small ones squashed where there are too many.

    A group ends after a package whose name's hash says so: boundaries depend on the names that
    are there and on nothing else, so that one package more changes one group.
    """
    if len(pairs) <= GROUP_ABOVE:
        return tuple(vertex for _, vertex in pairs)
    large = [vertex for package, vertex in pairs if package.size >= LARGE]
    groups: list[list[Vertex]] = [[]]
    for package, vertex in pairs:
        if package.size >= LARGE:
            continue
        groups[-1].append(vertex)
        first = hashlib.sha256(normalised(package.name).encode()).digest()[0]
        if first % _GROUP_SIZE == 0:
            groups.append([])
    return (*large, *(_squashed(group) for group in groups if group))


def _squashed(group: Sequence[Vertex]) -> Vertex:
    if len(group) == 1:
        return group[0]
    name = f"{group[0].name} … {group[-1].name}"
    return Vertex(Squash(), tuple(group), name=name, branch="python")


def _package_vertex(
    environment: Environment, package: LockedPackage, scheme: Scheme, epoch: int, system: Vertex
) -> Vertex:
    name = f"{package.name} {package.version}"
    spans = _spans(environment, package.name)
    inputs: tuple[Vertex, ...] = ()
    source = _wheel_source(package)
    if source.kind == "built":
        build = _build_op(package, scheme, epoch)
        inputs = (Vertex(build, (system,), f"build {name}", "python", spans),)
    op = Wheel(
        name=package.name,
        version=package.version,
        file=package.file if source.kind != "built" else "",
        sha256=package.sha256 if source.kind != "built" else "",
        source=source,
        scheme=scheme,
    )
    return Vertex(op, inputs, name, "python", spans)


def _wheel_source(package: LockedPackage) -> WheelSource:
    if not package.file.endswith(".whl"):
        return WheelSource("built")
    if package.source == "index":
        return WheelSource("index")
    if package.source == "local":
        return WheelSource("local", package.location)
    return WheelSource("url", package.location)


def _build_op(package: LockedPackage, scheme: Scheme, epoch: int) -> Op:
    assert package.source != "index"
    return BuildWheel(
        name=package.name,
        version=package.version,
        source=package.source,
        location=package.location,
        sha256=package.sha256,
        file=package.file,
        commit=package.commit,
        subdirectory=package.subdirectory,
        scheme=scheme,
        epoch=epoch,
    )


def _described(packages: PythonPackages) -> tuple[str, ...]:
    files = (packages.requirements,) if packages.requirements else ()
    return (*packages.names, *files, *packages.local_wheels)


def _spans(environment: Environment, package: str) -> tuple[Span, ...]:
    """The lines that name ``package`` (all lines that ask for packages where none does)."""
    needs = [one for one in python_needs(environment) if one.span.line]
    wanted = normalised(package)
    naming = [one.span for one in needs if any(name_of(name) == wanted for name in one.names)]
    return tuple(sorted(set(naming or [one.span for one in needs])))
