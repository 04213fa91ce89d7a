"""Vertices for conda packages, each a layer, and for a standalone build of Python."""

from __future__ import annotations

from danlu.assemble.python import group_small_packages, is_crowded, label_requirements
from danlu.environment.archives import LockedArchive, make_archive_vertex
from danlu.environment.conda import CondaPackages, has_conda
from danlu.environment.image_layout import CONDA_PREFIX, STANDALONE_PYTHON
from danlu.environment.lock import FunctionLock, LockedConda, LockedCondaPackage
from danlu.environment.requirements import list_all_conda_packages
from danlu.environment.types import Environment
from danlu.errors import Span
from danlu.graph.ops import CondaPackage, SquashConda, Unresolved
from danlu.graph.types import Vertex


def make_conda_vertices(environment: Environment, lock: FunctionLock | None) -> tuple[Vertex, ...]:
    """Return a vertex for each conda package, by name, with small ones grouped."""
    if not has_conda(environment):
        return ()
    declared = list_all_conda_packages(environment)
    if lock is None or lock.conda is None:
        names = [name for item in declared for name in (*item.names, item.env_file) if name]
        if not names:
            return ()
        op = Unresolved("conda packages", tuple(names))
        files = [item.env_file for item in declared if item.env_file]
        label = label_requirements("conda package", len(names) - len(files), files)
        return (Vertex(op, (), label, "conda", _find_spans(declared)),)
    pairs = [
        (package, _make_vertex(package, lock.conda, declared)) for package in lock.conda.packages
    ]
    if is_crowded(lock):
        return group_small_packages(pairs, SquashConda())
    return tuple(vertex for _, vertex in pairs)


def _make_vertex(
    package: LockedCondaPackage, conda: LockedConda, declared: tuple[CondaPackages, ...]
) -> Vertex:
    python = conda.find("python")
    minor = site_packages = ""
    if package.noarch_python and python is not None:
        minor = ".".join(python.version.split(".")[:2])
        site_packages = python.site_packages or f"lib/python{minor}/site-packages"
    op = CondaPackage(
        name=package.name,
        version=package.version,
        build=package.build,
        channel=package.channel,
        subdir=package.subdir,
        file=package.file,
        sha256=package.sha256,
        prefix=CONDA_PREFIX,
        python=minor,
        site_packages=site_packages,
    )
    naming = [item for item in declared if any(package.name in name for name in item.names)]
    label = f"{package.name} {package.version} (conda)"
    return Vertex(op, (), label, "conda", _find_spans(tuple(naming) or declared))


def _find_spans(declared: tuple[CondaPackages, ...]) -> tuple[Span, ...]:
    return tuple(sorted({item.span for item in declared if item.span.line}))


#: What builds record about the machine they were made on. Installers of packages with C code read
#: it: uv corrects the same values when it installs such a build.
_SYSCONFIG = "lib/python3*/_sysconfigdata_*.py"
_SUBSTITUTIONS = (
    (_SYSCONFIG, "'/install", f"'{STANDALONE_PYTHON}"),
    (_SYSCONFIG, "=/install", f"={STANDALONE_PYTHON}"),
    (_SYSCONFIG, "'clang++", "'c++"),
    (_SYSCONFIG, "'clang", "'cc"),
    (_SYSCONFIG, "'llvm-ar", "'ar"),
    ("lib/pkgconfig/*.pc", "prefix=/install", f"prefix={STANDALONE_PYTHON}"),
)


def make_interpreter_vertex(archive: LockedArchive, span: Span | None) -> Vertex:
    """Return a vertex with the interpreter below :data:`STANDALONE_PYTHON`."""
    return make_archive_vertex(
        archive,
        STANDALONE_PYTHON,
        strip_components=1,
        substitute=_SUBSTITUTIONS,
        branch="python",
        spans=(span,) if span else (),
    )
