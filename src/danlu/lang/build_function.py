"""A build function as one registered object, and the environment that calls declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from danlu.environment.lock_section import LockSection
from danlu.environment.types import (
    BaseSystem,
    Declaration,
    Environment,
    IncludeRef,
    Step,
)
from danlu.errors import Span
from danlu.lang.arg_types import BUILD_FUNCTION, ArgType, CallError

DEFAULT_IMAGE = "ubuntu:22.04"
"""The base of a file that declares none."""

_D = TypeVar("_D", bound=Declaration)


class EnvironmentBuilder:
    """What was declared so far, in the order of the file; ``text`` is that of the build file."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._unique: dict[str, Declaration] = {}
        self._setters: dict[str, str] = {}
        self._declarations: list[Declaration] = []
        self._steps: list[Step] = []
        self._includes: list[IncludeRef] = []
        self._python_requests: dict[str, tuple[str, Span]] = {}

    def declare(self, declaration: Declaration) -> None:
        """Add a declaration of which there may be several."""
        self._declarations.append(declaration)

    def declare_once(self, function: str, declaration: Declaration, *, setting: str = "") -> None:
        """Add the only declaration of a function; another one must be equal to it.

        Of functions that have the same ``setting`` only one may be called.
        """
        other = self._setters.setdefault(setting or function, function)
        if other != function:
            raise CallError(
                f"{function}() and {other}() both set {setting}",
                hint=f"{other}() is at {self._unique[other].span}; keep one of them",
            )
        if self._is_first(function, declaration):
            self._declarations.append(declaration)

    def request_python(self, function: str, version: str, span: Span) -> None:
        """Record which Python a call names; raise if that of install.python is another one."""
        self._python_requests.setdefault(function, (version, span))
        if len(self._python_requests) < 2:
            return
        python, uv = (self._python_requests[name][0] for name in ("install.python", "install.uv"))
        if not f"{python}.".startswith(f"{uv}."):
            first = next(iter(self._python_requests.values()))[1]
            raise CallError(
                f"install.uv() names Python {uv}, but the environment has Python {python}",
                hint=f"the first is at {first}; an environment has one Python, so name one version",
            )

    def find(self, kind: type[_D]) -> _D | None:
        """Return the first declaration of a type."""
        return next(iter(self.find_all(kind)), None)

    def find_all(self, kind: type[_D]) -> tuple[_D, ...]:
        """Return the declarations of a type, in the order of the file."""
        return tuple(item for item in self._declarations if isinstance(item, kind))

    def replace(self, old: Declaration, new: Declaration) -> None:
        """Replace a declaration by one that refines it."""
        self._declarations = [new if item is old else item for item in self._declarations]
        self._unique = {name: new if item is old else item for name, item in self._unique.items()}

    def add_step(self, step: Step) -> None:
        """Add a step."""
        self._steps.append(step)

    def add_include(self, include: IncludeRef) -> None:
        """Add a repository, once however often it is included."""
        if include not in self._includes:
            self._includes.append(include)

    def _is_first(self, function: str, value: Declaration) -> bool:
        """Return whether a function is called for the first time; raise if the values differ."""
        first = self._unique.setdefault(function, value)
        if first != value:
            raise CallError(
                f"{function}() is declared twice with different values",
                hint=f"the first is at {first.span}; keep one of them",
            )
        return first is value

    def build(self, *, name: str, file: str, span: Span, written_order: bool) -> Environment:
        """Return the environment of the function ``name`` of ``file``, defined at ``span``.

        With ``written_order`` the steps stay as written (``build.py``); without, those that run
        commands come last (envd's order).
        """
        declared = self.find(BaseSystem)
        base = declared or BaseSystem(image=DEFAULT_IMAGE, span=span)
        for declaration in self._declarations:
            base = declaration.choose_base(base)
        steps = self._steps if written_order else sorted(self._steps, key=_runs_commands)
        return Environment(
            name=name,
            file=file,
            base=base,
            declarations=tuple(item for item in self._declarations if item is not declared),
            steps=tuple(steps),
            includes=tuple(self._includes),
        )


def _runs_commands(step: Step) -> bool:
    return step.runs_commands


class NoDefault(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"


REQUIRED: Final = NoDefault.REQUIRED


class Parameter(msgspec.Struct, frozen=True):
    """A parameter; ``aliases`` are other spellings that are accepted (language v0).

    ``default`` is in the form that users write (lists as tuples); None means "not given" and
    leaves the choice to the function.
    """

    name: str
    type: ArgType
    doc: str
    default: object = REQUIRED
    aliases: tuple[str, ...] = ()
    keyword_only: bool = False

    @property
    def is_required(self) -> bool:
        """Whether a call must give it."""
        return self.default is REQUIRED


class BuildFunction(msgspec.Struct, frozen=True):
    """A function of the build language.

    ``declare`` checks what types cannot express, raising
    :class:`~danlu.lang.arg_types.CallError`, and adds declarations or steps to the environment.
    What those contribute to the lock and the graph is up to their classes
    (:class:`danlu.environment.types.Declaration`). With ``runtime_only`` it changes nothing in the
    image and takes effect when the environment starts. With ``starlark_only`` a ``build.py``
    does not have it.

    ``unique``: a second call with other values is an error. ``lock_section`` is the list of pins
    that the function owns in the lock. ``returns`` is the Python annotation of its value.
    ``positional_mapper`` names the positional arguments if they differ between versions of the
    language.
    """

    name: str
    doc: str
    parameters: tuple[Parameter, ...] = ()
    declare: Callable[[EnvironmentBuilder, BoundCall], None] | None = None
    versions: tuple[str, ...] = ("v0", "v1")
    runtime_only: bool = False
    starlark_only: bool = False
    unique: bool = False
    lock_section: LockSection[Any] | None = None
    returns: str = "None"
    example: str = ""
    positional_mapper: Callable[[tuple[object, ...]], Mapping[str, object]] | None = None

    @property
    def namespace(self) -> str:
        """``install`` of ``install.python``; empty for a plain function."""
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        """``python`` of ``install.python``."""
        return self.name.rpartition(".")[2]

    @property
    def takes_functions(self) -> bool:
        """Whether one of its arguments may be a build function."""
        return any(parameter.type is BUILD_FUNCTION for parameter in self.parameters)

    def find_parameter(self, name: str, value: object = None) -> Parameter | None:
        """Return the parameter of that name or alias.

        If the name of one is an alias of another, a text is the value of the other.
        """
        named = [item for item in self.parameters if name == item.name or name in item.aliases]
        if not named:
            return None
        return named[0] if isinstance(value, str) else named[-1]


class BoundCall(msgspec.Struct, frozen=True):
    """A call whose arguments passed their parameters' checks.

    ``given`` has the values of the arguments that were written, by parameter name; ``commit`` is
    the one that an ``include()`` was resolved to. ``included_from`` is the place in an included
    repository that the call comes from (``URL/FILE:LINE``); empty if only the user's files made it.
    """

    function: BuildFunction
    given: Mapping[str, Any]
    span: Span
    commit: str = ""
    included_from: str = ""

    def __getitem__(self, name: str) -> Any:
        """Return the value of a parameter: the one given, else its default."""
        if name in self.given:
            return self.given[name]
        parameter = self.function.find_parameter(name)
        return parameter.default if parameter is not None else None
