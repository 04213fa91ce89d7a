"""The environment that a build function describes, as frozen values.

A :class:`Declaration` is one call of a build function whose order does not matter; a
:class:`Step` is one whose order does (docs/architecture/decisions.md#declarations-then-steps). Both
are base classes: a build function subclasses one of them and overrides what its call contributes,
so that no other code depends on the function. The declarations in this module are those that other
phases look up by type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from danlu.environment.image_layout import CONDA_PREFIX, USER_ID, VENV
from danlu.environment.lock import FunctionLock, LockedPython
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import Span
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import FileEntry, Platform
from danlu.graph.processor_level import LEVEL_LABEL
from danlu.graph.types import Vertex
from danlu.util.urls import strip_credentials

_NOWHERE = Span("", 0)

_D = TypeVar("_D", bound="Declaration")


class LocatedValue(msgspec.Struct, frozen=True, kw_only=True, tag_field="declaration", tag=True):
    """A value from one line of the build file. The line does not take part in comparisons.

    The tag keeps the digests of two declarations apart that have equal fields.
    """

    span: Span = _NOWHERE

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._compared_fields() == other._compared_fields()

    def __hash__(self) -> int:
        return hash(self._compared_fields())

    def _compared_fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "span")


class Declaration(LocatedValue, frozen=True):
    """What one call of a build function declares. Override what the call contributes.

    Contributions of several declarations are combined in ascending ``rank``, and in the order of
    the file within a rank. A rank other than 0 is for the rare contribution that must win.
    """

    rank: ClassVar[int] = 0
    needs_python: ClassVar[bool] = False
    """Whether the environment needs a Python interpreter because of this declaration."""
    start_function: ClassVar[str] = ""
    """The build function, if its calls act when the environment starts."""

    def system_packages(self) -> tuple[str, ...]:
        """Return the distribution's packages to install; ``name=version`` pins one as in apt."""
        return ()

    def python_packages(self) -> tuple[PythonPackages, ...]:
        """Return the Python packages to install."""
        return ()

    def project_files(self) -> tuple[str, ...]:
        """Return the paths of the project's files whose content the build depends on."""
        return ()

    def config_files(self) -> tuple[FileEntry, ...]:
        """Return files to write; those of all declarations become one layer, in this order."""
        return ()

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        """Return vertices whose layers go over the system packages, below the config files."""
        return ()

    def virtual_packages(self) -> tuple[tuple[str, str], ...]:
        """Return (name, version) of conda's virtual packages that the machine will have."""
        return ()

    def mirrors(self) -> tuple[tuple[str, str], ...]:
        """Return (name, URL) of mirrors to use instead of the user's; may have credentials."""
        return ()

    def choose_base(self, base: BaseSystem) -> BaseSystem:
        """Return the base to use: ``base``, or one that takes its place."""
        return base

    def explain_conflict(self, reason: str) -> str:
        """Return a hint if this call is why no packages fit, given the resolver's reason."""
        return ""

    def check_lock(self, lock: FunctionLock) -> None:
        """Raise :class:`~danlu.errors.ResolveError` if what was resolved contradicts the call."""

    def variables(self) -> tuple[tuple[str, str], ...]:
        """Return environment variables for the image and for steps."""
        return ()

    def extra_path(self) -> tuple[str, ...]:
        """Return directories to put before PATH, in the image and in steps."""
        return ()

    def configure(self, config: ImageConfig) -> ImageConfig:
        """Return the image's configuration with what this declaration changes in it."""
        return config

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        """Return how the environment is started, with what this declaration changes in it."""
        return settings


class RuntimeDeclaration(Declaration, frozen=True):
    """A declaration that acts only when the environment starts, and changes nothing in the image.

    Subclasses set ``start_function``.
    """


class Step(LocatedValue, frozen=True):
    """A call that changes the image after everything declared, in the order of the file."""

    runs_commands: ClassVar[bool] = False
    """Whether it runs the user's commands; a ``build.envd`` runs those after all other steps."""

    @property
    def uses_project(self) -> bool:
        """Whether the step sees the whole project."""
        return False

    def project_files(self) -> tuple[str, ...]:
        """Return the paths of the project's files whose content the build depends on."""
        return ()

    def source_target(self) -> str:
        """Return the target (``build(gpu=True)``) whose result it copies files of, or empty."""
        return ""

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses that are fetched, with credentials as the user wrote them."""
        return ()

    def add_to(self, below: Vertex, context: GraphContext) -> Vertex:
        """Return ``below`` with this step's layer over it."""
        raise NotImplementedError


class IncludeRef(LocatedValue, frozen=True):
    """``include(url, ref)`` and the commit that was read, as a full object name."""

    url: str
    ref: str
    commit: str


# -- declarations that other phases look up by type ------------------------------------------------


class BaseSystem(Declaration, frozen=True):
    """``base(…)``: exactly one of ``os`` (``debian12``, ``ubuntu22.04``) and ``image`` is set.

    ``variant`` is a level of x86-64 processors, or empty.
    """

    os: str = ""
    image: str = ""
    dev: bool = False
    language: str = ""
    variant: str = ""

    def system_packages(self) -> tuple[str, ...]:
        return DEV_TOOLS if self.dev else ()

    def configure(self, config: ImageConfig) -> ImageConfig:
        if not self.variant:
            return config
        labels = {**dict(config.labels), LEVEL_LABEL: self.variant}
        return replace(config, labels=tuple(sorted(labels.items())))


class PythonInterpreter(Declaration, frozen=True):
    """``install.python(version)``: ``3.11`` or ``3.11.2``; empty for the distribution's own."""

    needs_python = True

    version: str = ""


class UvTool(Declaration, frozen=True):
    """``install.uv(python_version)``: uv in the image, and a Python of that version."""

    needs_python = True

    python_version: str = ""

    def python_packages(self) -> tuple[PythonPackages, ...]:
        return (PythonPackages(names=("uv",), source="install.uv", span=self.span),)


class SystemPackages(Declaration, frozen=True):
    """``install.apt_packages(names)``."""

    names: tuple[str, ...]

    def system_packages(self) -> tuple[str, ...]:
        return self.names


class PythonPackages(Declaration, frozen=True):
    """``install.python_packages(…)``: PEP 508 requirements, a requirements file, local wheels.

    ``names`` may be URLs and VCS addresses (``pkg @ git+https://…@ref``, ``git+https://…``);
    ``requirements``, ``local_wheels`` and ``pyproject`` are paths relative to the project;
    ``groups`` and ``extras`` are those of the ``pyproject.toml``. ``constraints`` are requirements
    that limit the versions of all that is installed. ``torch_backend`` (``cpu``, ``cu126``) is the
    index of PyTorch that its packages come from. ``source`` names the declaration that implies the
    packages, if the user did not declare them.
    """

    needs_python = True

    names: tuple[str, ...] = ()
    requirements: str = ""
    local_wheels: tuple[str, ...] = ()
    pyproject: str = ""
    groups: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    source: str = ""
    torch_backend: str = ""

    def python_packages(self) -> tuple[PythonPackages, ...]:
        return (self,)

    def project_files(self) -> tuple[str, ...]:
        return (*self.local_wheels, *filter(None, (self.requirements, self.pyproject)))


class AptSource(Declaration, frozen=True):
    """``config.apt_source(source)``: the text of the image's ``/etc/apt/sources.list``."""

    source: str

    def config_files(self) -> tuple[FileEntry, ...]:
        return (FileEntry("/etc/apt/sources.list", content=self.source.rstrip("\n") + "\n"),)


class PipIndex(Declaration, frozen=True):
    """``config.pip_index(url, extra_url, trust)``: used to resolve, and written to the image."""

    url: str
    extra_url: str = ""
    trust: bool = False

    def config_files(self) -> tuple[FileEntry, ...]:
        lines = ["[global]", f"index-url = {strip_credentials(self.url)}"]
        if self.extra_url:
            lines.append(f"extra-index-url = {strip_credentials(self.extra_url)}")
        if self.trust:
            hosts = [urlsplit(url).hostname for url in (self.url, self.extra_url) if url]
            lines.append("trusted-host = " + " ".join(sorted({host for host in hosts if host})))
        return (FileEntry("/etc/pip.conf", content="\n".join(lines) + "\n"),)


class ImageOwner(Declaration, frozen=True):
    """``config.owner(uid, gid)``, each from 0 to 65535."""

    uid: int
    gid: int

    def configure(self, config: ImageConfig) -> ImageConfig:
        return replace(config, user=f"{self.uid}:{self.gid}")


#: What ``base(dev=True)`` adds: what people expect in a shell, and what services start with.
DEV_TOOLS = (
    "bash-completion",
    "ca-certificates",
    "curl",
    "git",
    "less",
    "make",
    "openssh-client",
    "openssh-server",
    "procps",
    "sudo",
    "tini",
    "vim-tiny",
    "wget",
)


# -- the whole environment -------------------------------------------------------------------------


class ProjectDigests(msgspec.Struct, frozen=True):
    """Digests (``sha256:…``) of what an environment takes from the project.

    ``files`` maps a path, as the build file names it, to the digest of its content: requirements
    files, local wheels, sources of ``io.copy``. ``packages`` maps every path that Python packages
    come from, also through requirements files: wheels, archives, directories to build.
    ``sources`` are the digests of the environments that it copies from, by target.
    ``context`` is the digest of the whole project if a step sees it, else empty. ``editable`` maps
    the directories of editable packages to digests of their metadata; ``copies`` maps them to
    digests of their content if the image must work without the project, else it is empty.
    ``absent`` are paths of files that would count, but do not exist: ``uv.lock``.
    """

    files: Mapping[str, str] = {}
    packages: Mapping[str, str] = {}
    context: str = ""
    editable: Mapping[str, str] = {}
    copies: Mapping[str, str] = {}
    sources: Mapping[str, ProjectDigests] = {}
    absent: tuple[str, ...] = ()

    def merge_sources(self) -> ProjectDigests:
        """Return the digests of all environments together: a path has the same digest in each."""
        merged = replace(self, sources={})
        for other in self.sources.values():
            merged = ProjectDigests(
                {**other.files, **merged.files},
                {**other.packages, **merged.packages},
                merged.context or other.context,
                {**other.editable, **merged.editable},
                {**other.copies, **merged.copies},
                absent=tuple(dict.fromkeys((*merged.absent, *other.absent))),
            )
        return merged


class Environment(msgspec.Struct, frozen=True):
    """Everything that one build function describes.

    ``name`` is the function's, ``file`` the build file as the user named it. ``declarations`` are
    in the order of the file, ``steps`` in the order they run. ``sources`` are the environments that
    steps copy files of, directly and indirectly, by target (``build(gpu=True)``), each after those
    that it copies from; they have no sources of their own.
    """

    name: str
    file: str
    base: BaseSystem
    declarations: tuple[Declaration, ...] = ()
    steps: tuple[Step, ...] = ()
    includes: tuple[IncludeRef, ...] = ()
    sources: Mapping[str, Environment] = {}

    def find(self, kind: type[_D]) -> _D | None:
        """Return the declaration of a type that is declared at most once."""
        return next(iter(self.find_all(kind)), None)

    def find_all(self, kind: type[_D]) -> tuple[_D, ...]:
        """Return the declarations of a type, in the order of the file."""
        return tuple(item for item in self.declarations if isinstance(item, kind))

    def list_by_rank(self) -> list[Declaration]:
        """Return the base and all declarations in the order in which they are combined."""
        return sorted((self.base, *self.declarations), key=lambda item: item.rank)

    @property
    def python(self) -> PythonInterpreter | None:
        """The interpreter that the user declared."""
        return self.find(PythonInterpreter)

    @property
    def system_packages(self) -> tuple[SystemPackages, ...]:
        """The system packages that the user declared."""
        return self.find_all(SystemPackages)

    @property
    def python_packages(self) -> tuple[PythonPackages, ...]:
        """The Python packages that the user declared."""
        return self.find_all(PythonPackages)

    @property
    def apt_source(self) -> AptSource | None:
        """The source of system packages that the user declared."""
        return self.find(AptSource)

    @property
    def pip_index(self) -> PipIndex | None:
        """The index of Python packages that the user declared."""
        return self.find(PipIndex)

    @property
    def uses_project(self) -> bool:
        """Whether a step sees the whole project."""
        return any(step.uses_project for step in self.steps)

    @property
    def start_functions(self) -> tuple[str, ...]:
        """The names of the functions that act when the environment starts, sorted."""
        return tuple(sorted({item.start_function for item in self.declarations} - {""}))

    def runtime_settings(self) -> RuntimeSettings:
        """Return how the environment is started: what all declarations say together."""
        settings = RuntimeSettings()
        for declaration in self.list_by_rank():
            settings = declaration.configure_runtime(settings)
        return settings

    def strip_runtime(self) -> Environment:
        """Return the environment without the declarations that change nothing in the image."""
        kept = (item for item in self.declarations if not isinstance(item, RuntimeDeclaration))
        sources = {name: source.strip_runtime() for name, source in self.sources.items()}
        return replace(self, declarations=tuple(kept), sources=sources)

    def mirrors(self) -> dict[str, str]:
        """Return the mirrors that the build file sets, by name."""
        return dict(pair for item in self.list_by_rank() for pair in item.mirrors())

    def project_files(self) -> dict[str, Span]:
        """Return the paths of the project that the environment names, sorted, with their lines."""
        files: dict[str, Span] = {}
        calls: tuple[Declaration | Step, ...] = (*self.declarations, *self.steps)
        for call in calls:
            for path in call.project_files():
                files.setdefault(path, call.span)
        return dict(sorted(files.items()))


class GraphContext(msgspec.Struct, frozen=True):
    """What a declaration or step needs to know to become part of a build graph.

    Without a lock the graph can be shown but not built; what a lock would pin is an
    ``Unresolved`` vertex then. ``system`` is the stack of the base and the system packages, in
    which packages of declarations can be built. ``wheels`` are the Python packages over it by
    name, for declarations that read their files. ``sources`` are the results that steps copy files
    of, by target.
    """

    environment: Environment
    lock: FunctionLock | None
    digests: ProjectDigests
    platform: Platform
    system: Vertex | None = None
    wheels: Mapping[str, Vertex] = {}
    sources: Mapping[str, Vertex] = {}

    @property
    def python(self) -> LockedPython | None:
        """The locked interpreter."""
        return self.lock.python if self.lock else None

    @property
    def epoch(self) -> int:
        """The time of what the build writes, in seconds UTC."""
        return self.lock.base.epoch if self.lock else 0

    @property
    def owner(self) -> ImageOwner:
        """The user who owns the files that steps copy: the environment's, or else root."""
        user = ImageOwner(USER_ID, USER_ID) if self.environment.base.dev else ImageOwner(0, 0)
        return self.environment.find(ImageOwner) or user

    def variables(self) -> dict[str, str]:
        """Return the variables of the image and of steps."""
        variables = {"LANG": "C.UTF-8"}
        if self.python is not None:
            variables["VIRTUAL_ENV"] = VENV
        if self.lock is not None and self.lock.conda is not None:
            variables["CONDA_PREFIX"] = CONDA_PREFIX
        for declaration in self.environment.list_by_rank():
            variables.update(declaration.variables())
        return variables

    def path(self) -> tuple[str, ...]:
        """Return the directories before the base's PATH, in the image and in steps."""
        path: tuple[str, ...] = (f"{VENV}/bin",) if self.python is not None else ()
        if self.lock is not None and self.lock.conda is not None:
            path = (*path, f"{CONDA_PREFIX}/bin")
        for declaration in self.environment.list_by_rank():
            path = (*declaration.extra_path(), *path)
        return path
