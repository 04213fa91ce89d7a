"""What a build function describes: declarations and steps, frozen, each with its place in the file.

An :class:`Environment` is what the language evaluates to and all that later phases see of the
user's file. Declarations have no order between them; ``steps`` has the file's (D1). Repeated
calls of a list-like function are kept as separate declarations, so that a message or a vertex
can name the line; a repeated call of a single-valued function is an error of the language
unless the values are equal.
"""

from __future__ import annotations

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
    "Placed",
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


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of a build file says; where it stands makes no difference to what it is."""

    span: Span = _NOWHERE

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "span")


class Base(Placed, frozen=True):
    """``base(…)``: exactly one of ``os`` (``debian12``, ``ubuntu22.04``) and ``image`` is set."""

    os: str = ""
    image: str = ""
    dev: bool = False
    language: str = ""


class Python(Placed, frozen=True):
    """``install.python(version)``: ``3.11`` or ``3.11.2``; empty for the distribution's own."""

    version: str = ""


class Uv(Placed, frozen=True):
    """``install.uv(python_version)``: uv in the image, beside a Python of that version."""

    python_version: str = ""


class SystemPackages(Placed, frozen=True):
    """``install.apt_packages(names)``; a name may be pinned as apt does: ``git=1:2.39*``."""

    names: tuple[str, ...]


class PythonPackages(Placed, frozen=True):
    """``install.python_packages(…)``: PEP 508 requirements, a requirements file, local wheels.

    ``names`` may be URLs and VCS addresses (``pkg @ git+https://…@ref``, ``git+https://…``);
    ``requirements`` and ``local_wheels`` are paths relative to the project. ``source`` says why
    danlu added it, where the user did not (``config.jupyter``, ``dev=True``).
    """

    names: tuple[str, ...] = ()
    requirements: str = ""
    local_wheels: tuple[str, ...] = ()
    source: str = ""


class AptSource(Placed, frozen=True):
    """``config.apt_source(source)``: the text of the image's ``/etc/apt/sources.list``."""

    source: str


class PipIndex(Placed, frozen=True):
    """``config.pip_index(url, extra_url, trust)``: used to resolve, and written to the image."""

    url: str
    extra_url: str = ""
    trust: bool = False


class Owner(Placed, frozen=True):
    """``config.owner(uid, gid)``, each 0..65535."""

    uid: int
    gid: int


class Entrypoint(Placed, frozen=True):
    """``config.entrypoint(args)``."""

    args: tuple[str, ...]


class Jupyter(Placed, frozen=True):
    """``config.jupyter(token, port)``; ``port`` 0 means any. The token never enters the image."""

    token: str = ""
    port: int = 0

    def __repr__(self) -> str:
        return f"Jupyter(port={self.port})"


class Shell(Placed, frozen=True):
    """``shell(name)``."""

    name: Literal["bash", "zsh", "fish"]


class GitConfig(Placed, frozen=True):
    """``git_config(name, email, editor)``; an empty value is not written."""

    name: str = ""
    email: str = ""
    editor: str = ""


class Environ(Placed, frozen=True):
    """``runtime.environ(env, extra_path)``; a later one wins over an earlier one."""

    variables: tuple[tuple[str, str], ...] = ()
    extra_path: tuple[str, ...] = ()


class Secret(msgspec.Struct, frozen=True):
    """A secret that one ``run()`` may read: its id (as in ``--secret id=…``) and its file."""

    id: str
    target: str


class Run(Placed, frozen=True):
    """``run(commands, mount_host, secrets, ssh)``: one bash script, a line a command, one layer."""

    commands: tuple[str, ...]
    mount_host: bool = False
    secrets: tuple[Secret, ...] = ()
    ssh: bool = False


class Copy(Placed, frozen=True):
    """``io.copy(source, target, image)``: from the project, or from an image."""

    source: str
    target: str
    image: str = ""


class Http(Placed, frozen=True):
    """``io.http(url, checksum, filename)``; ``checksum`` is ``sha256:…`` or empty.

    The file goes to ``/home/envd/extra_source/<filename>`` as in envd; ``filename`` defaults to
    the last part of the URL's path.
    """

    url: str
    checksum: str = ""
    filename: str = ""


Step = Run | Copy | Http


class Other(Placed, frozen=True):
    """A call that is validated and planned but not built in this version, or acts only at start.

    ``arguments`` are (parameter, canonical JSON of the value), sorted, defaults left out.
    ``at_start`` is true for functions that change nothing in the image (``runtime.expose``,
    ``runtime.mount`` …): a build goes on, and they wait for ``danlu up``.
    """

    function: str
    arguments: tuple[tuple[str, str], ...] = ()
    at_start: bool = False


class IncludeUse(Placed, frozen=True):
    """``include(url, ref)`` as it was used: the commit that was read, full object name."""

    url: str
    ref: str
    commit: str


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
