"""Vertices for Python: the virtual environment, and a layer for each wheel.

See docs/architecture/decisions.md#one-layer-per-package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from danlu.environment.image_layout import CONDA_PREFIX, PROJECT, VENV, make_scheme
from danlu.environment.lock import FunctionLock, LockedCondaPackage, LockedPackage, LockedPython
from danlu.environment.package_names import normalize_name, requirement_name
from danlu.environment.requirements import PYTHON_SOURCE, list_python_packages
from danlu.environment.types import Environment, PythonPackages
from danlu.errors import LockError, Span
from danlu.graph.ops import (
    BuildEditable,
    BuildRequirement,
    BuildWheel,
    FileEntry,
    Files,
    InstallScheme,
    Op,
    Squash,
    Unresolved,
    Wheel,
    WheelSource,
)
from danlu.graph.types import Vertex
from danlu.util.human import pluralize

#: Up to this number of wheels, each is a separate layer (container engines allow 127 layers).
GROUP_ABOVE = 100

#: A wheel file of at least this size in bytes is never grouped.
LARGE = 4 << 20

#: The average number of small wheels in a group.
_GROUP_SIZE = 16


def make_venv_vertex(python: LockedPython, epoch: int, *, visible_base: bool) -> Vertex:
    """Return a vertex with the files of an empty virtual environment.

    ``visible_base`` makes the packages of the base image importable in it
    (``include-system-site-packages``, PEP 405). Those of the environment are visible in conda's own
    Python too: that is what runs the programs of conda packages.
    """
    scheme = make_scheme(python)
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
    if python.provider == "conda":
        path = f"{CONDA_PREFIX}/{scheme.site_packages}/venv.pth"
        entries.append(FileEntry(path, content=f"{VENV}/{scheme.site_packages}\n"))
    name = f"python {python.version} in {VENV}"
    return Vertex(Files(tuple(entries), epoch), name=name, branch="python")


def make_package_vertices(
    environment: Environment,
    lock: FunctionLock | None,
    system: Vertex,
    copies: Mapping[str, str] = {},
) -> tuple[Vertex, ...]:
    """Return a vertex for each Python package, by normalized name, with small ones grouped.

    ``system`` is the stack in which source distributions are built, ``copies`` is as for
    :func:`make_wheel_vertices`.
    """
    if lock is None:
        declared = [
            packages
            for packages in list_python_packages(environment)
            if packages.source != PYTHON_SOURCE or not environment.python_packages
        ]
        names = [name for packages in declared for name in _describe_packages(packages)]
        if not names:
            return ()
        op = Unresolved("Python packages", tuple(names))
        files = [file for packages in declared for file in _list_files(packages)]
        label = label_requirements("Python requirement", len(names) - len(files), files)
        return (Vertex(op, (), label, "python", _find_spans(environment, "")),)
    wheels = make_wheel_vertices(environment, lock, system, copies)
    pairs = [(package, wheels[package.name]) for package in _sort_packages(lock)]
    return group_small_packages(pairs, Squash()) if is_crowded(lock) else tuple(wheels.values())


def make_wheel_vertices(
    environment: Environment,
    lock: FunctionLock | None,
    system: Vertex,
    copies: Mapping[str, str] = {},
) -> dict[str, Vertex]:
    """Return the vertex of each locked Python package by name, none of them grouped.

    ``copies`` are the directories of editable packages to be copied (:class:`ProjectDigests`).
    """
    if lock is None or lock.python is None:
        return {}
    scheme, epoch = make_scheme(lock.python), lock.base.epoch
    builds = {
        f"{wheel.name}=={wheel.version}": BuildRequirement(
            wheel.name, wheel.version, wheel.file, wheel.sha256
        )
        for wheel in lock.build_packages
    }
    return {
        package.name: _make_package_vertex(
            environment, package, builds, scheme, epoch, system, copies
        )
        for package in _sort_packages(lock)
    }


def _sort_packages(lock: FunctionLock) -> list[LockedPackage]:
    packages = lock.packages if lock.python is not None else ()
    return sorted(packages, key=lambda package: normalize_name(package.name))


def is_crowded(lock: FunctionLock) -> bool:
    """Return whether there are too many packages for each to be a layer."""
    conda = lock.conda.packages if lock.conda else ()
    return len(lock.packages) + len(conda) > GROUP_ABOVE


def group_small_packages(
    pairs: Sequence[tuple[LockedPackage | LockedCondaPackage, Vertex]], op: Squash
) -> tuple[Vertex, ...]:
    """Return the vertices of ``pairs`` (sorted by name), the small ones in groups under ``op``.

    The hash of a package's name decides whether a group ends after it. The boundaries depend only
    on the names, so that adding a package changes one group.
    """
    large = [vertex for package, vertex in pairs if package.size >= LARGE]
    groups: list[list[Vertex]] = [[]]
    for package, vertex in pairs:
        if package.size >= LARGE:
            continue
        groups[-1].append(vertex)
        first = hashlib.sha256(normalize_name(package.name).encode()).digest()[0]
        if first % _GROUP_SIZE == 0:
            groups.append([])
    return (*large, *(_make_squash_vertex(group, op) for group in groups if group))


def _make_squash_vertex(group: Sequence[Vertex], op: Squash) -> Vertex:
    if len(group) == 1:
        return group[0]
    name = f"{group[0].name} … {group[-1].name}"
    return Vertex(op, tuple(group), name=name, branch=group[0].branch)


def _make_package_vertex(
    environment: Environment,
    package: LockedPackage,
    builds: Mapping[str, BuildRequirement],
    scheme: InstallScheme,
    epoch: int,
    system: Vertex,
    copies: Mapping[str, str],
) -> Vertex:
    name = f"{package.name} {package.version}"
    spans = _find_spans(environment, package.name)
    inputs: tuple[Vertex, ...] = ()
    source = _make_wheel_source(package)
    if source.kind == "built":
        build = _make_build_op(package, builds, scheme, epoch, copies)
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


def _make_wheel_source(package: LockedPackage) -> WheelSource:
    if not package.file.endswith(".whl"):
        return WheelSource("built")
    if package.source == "index":
        return WheelSource("index")
    if package.source == "local":
        return WheelSource("local", package.location)
    return WheelSource("url", package.location)


def _make_build_op(
    package: LockedPackage,
    builds: Mapping[str, BuildRequirement],
    scheme: InstallScheme,
    epoch: int,
    copies: Mapping[str, str],
) -> Op:
    assert package.source != "index"
    requires = tuple(builds[pin] for pin in package.build or ())
    sha256 = package.sha256
    if package.editable and not copies:
        return BuildEditable(
            name=package.name,
            version=package.version,
            location=package.location,
            sha256=sha256,
            project=PROJECT,
            scheme=scheme,
            epoch=epoch,
            requires=requires,
        )
    if package.editable:
        if package.location not in copies:
            raise LockError(
                f"{package.location}, which is locked, is not among the editable packages",
                hint="run `danlu lock`",
            )
        sha256 = copies[package.location].removeprefix("sha256:")
    return BuildWheel(
        name=package.name,
        version=package.version,
        source=package.source,
        location=package.location,
        sha256=sha256,
        file=package.file,
        commit=package.commit,
        subdirectory=package.subdirectory,
        scheme=scheme,
        epoch=epoch,
        requires=requires,
    )


def _describe_packages(packages: PythonPackages) -> tuple[str, ...]:
    return (*packages.names, *_list_files(packages), *packages.local_wheels)


def _list_files(packages: PythonPackages) -> list[str]:
    return list(filter(None, (packages.requirements, packages.pyproject)))


def label_requirements(noun: str, count: int, files: Sequence[str]) -> str:
    """Return ``2 Python requirements and those of requirements.txt``: files may have any number."""
    of_files = f"of {' and '.join(files)}" if files else ""
    if not count:
        return f"{noun}s {of_files}"
    return pluralize(count, noun) + (f" and those {of_files}" if files else "")


def _find_spans(environment: Environment, package: str) -> tuple[Span, ...]:
    """Return the lines that name ``package``, or all lines with packages if none does."""
    needs = [packages for packages in list_python_packages(environment) if packages.span.line]
    wanted = normalize_name(package)
    naming = [
        packages.span
        for packages in needs
        if any(requirement_name(name) == wanted for name in packages.names)
    ]
    return tuple(sorted(set(naming or [packages.span for packages in needs])))
