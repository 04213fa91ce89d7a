"""Vertices for a standalone build of Python: the archive, made to fit where it is unpacked."""

from __future__ import annotations

from danlu.environment.archives import LockedArchive, make_archive_vertex
from danlu.environment.image_layout import STANDALONE_PYTHON
from danlu.errors import Span
from danlu.graph.types import Vertex

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
