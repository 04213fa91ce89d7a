"""What a build function describes: declarations and steps, frozen, each with its place in the file.

An :class:`Environment` is what the language evaluates to and all that later phases see of the
user's file. Declarations have no order between them; ``steps`` has the file's (D1). Repeated
calls of a list-like function are kept as separate declarations, so that a message or a vertex
can name the line; a repeated call of a single-valued function is an error of the language
unless the values are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from danlu.errors import Span

__all__ = [
    "AptSource",
    "Base",
    "Copy",
    "Entrypoint",
    "Environ",
    "Environment",
    "GitConfig",
    "Http",
    "IncludeUse",
    "Jupyter",
    "Other",
    "Owner",
    "PipIndex",
    "Python",
    "PythonPackages",
    "Run",
    "Secret",
    "Shell",
    "Step",
    "SystemPackages",
    "Uv",
]

_NOWHERE = Span("", 0)


@dataclass(frozen=True, slots=True)
class Base:
    """``base(…)``: exactly one of ``os`` (``debian12``, ``ubuntu22.04``) and ``image`` is set."""

    os: str = ""
    image: str = ""
    dev: bool = False
    language: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Python:
    """``install.python(version)``: ``3.11`` or ``3.11.2``; empty for the distribution's own."""

    version: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Uv:
    """``install.uv(python_version)``: uv in the image, beside a Python of that version."""

    python_version: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class SystemPackages:
    """``install.apt_packages(names)``; a name may be pinned as apt does: ``git=1:2.39*``."""

    names: tuple[str, ...]
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class PythonPackages:
    """``install.python_packages(…)``: PEP 508 requirements, a requirements file, local wheels.

    ``names`` may be URLs and VCS addresses (``pkg @ git+https://…@ref``, ``git+https://…``);
    ``requirements`` and ``local_wheels`` are paths relative to the project. ``source`` says why
    danlu added it, where the user did not (``config.jupyter``, ``dev=True``).
    """

    names: tuple[str, ...] = ()
    requirements: str = ""
    local_wheels: tuple[str, ...] = ()
    source: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class AptSource:
    """``config.apt_source(source)``: the text of the image's ``/etc/apt/sources.list``."""

    source: str
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class PipIndex:
    """``config.pip_index(url, extra_url, trust)``: used to resolve, and written to the image."""

    url: str
    extra_url: str = ""
    trust: bool = False
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Owner:
    """``config.owner(uid, gid)``, each 0..65535."""

    uid: int
    gid: int
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """``config.entrypoint(args)``."""

    args: tuple[str, ...]
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Jupyter:
    """``config.jupyter(token, port)``; ``port`` 0 means any. The token never enters the image."""

    token: str = field(default="", repr=False)
    port: int = 0
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Shell:
    """``shell(name)``."""

    name: Literal["bash", "zsh", "fish"]
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class GitConfig:
    """``git_config(name, email, editor)``; an empty value is not written."""

    name: str = ""
    email: str = ""
    editor: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Environ:
    """``runtime.environ(env, extra_path)``; a later one wins over an earlier one."""

    variables: tuple[tuple[str, str], ...] = ()
    extra_path: tuple[str, ...] = ()
    span: Span = field(default=_NOWHERE, compare=False)


class Secret(msgspec.Struct, frozen=True):
    """A secret that one ``run()`` may read: its id (as in ``--secret id=…``) and its file."""

    id: str
    target: str


@dataclass(frozen=True, slots=True)
class Run:
    """``run(commands, mount_host, secrets, ssh)``: one bash script, a line a command, one layer."""

    commands: tuple[str, ...]
    mount_host: bool = False
    secrets: tuple[Secret, ...] = ()
    ssh: bool = False
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """``io.copy(source, target, image)``: from the project, or from an image."""

    source: str
    target: str
    image: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Http:
    """``io.http(url, checksum, filename)``; ``checksum`` is ``sha256:…`` or empty.

    The file goes to ``/home/envd/extra_source/<filename>`` as in envd; ``filename`` defaults to
    the last part of the URL's path.
    """

    url: str
    checksum: str = ""
    filename: str = ""
    span: Span = field(default=_NOWHERE, compare=False)


Step = Run | Copy | Http


@dataclass(frozen=True, slots=True)
class Other:
    """A call that is validated and planned but not built in this version, or acts only at start.

    ``arguments`` are (parameter, canonical JSON of the value), sorted, defaults left out.
    ``at_start`` is true for functions that change nothing in the image (``runtime.expose``,
    ``runtime.mount`` …): a build goes on, and they wait for ``danlu up``.
    """

    function: str
    arguments: tuple[tuple[str, str], ...] = ()
    at_start: bool = False
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class IncludeUse:
    """``include(url, ref)`` as it was used: the commit that was read, full object name."""

    url: str
    ref: str
    commit: str
    span: Span = field(default=_NOWHERE, compare=False)


class Environment(msgspec.Struct, frozen=True):
    """All that one build function described.

    ``name`` is the function's, ``file`` the build file as the user named it, ``steps`` are in
    the order they run (D1: in ``build.envd`` copies and downloads before runs).
    """

    name: str
    file: str
    base: Base
    python: Python | None = None
    uv: Uv | None = None
    system_packages: tuple[SystemPackages, ...] = ()
    python_packages: tuple[PythonPackages, ...] = ()
    apt_source: AptSource | None = None
    pip_index: PipIndex | None = None
    owner: Owner | None = None
    entrypoint: Entrypoint | None = None
    jupyter: Jupyter | None = None
    shell: Shell | None = None
    git_config: GitConfig | None = None
    environ: tuple[Environ, ...] = ()
    steps: tuple[Step, ...] = ()
    other: tuple[Other, ...] = ()
    includes: tuple[IncludeUse, ...] = ()
