"""A build function as one registered object: signature, checks, and what a call declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from danlu.environment.lock import LockSection
from danlu.errors import Span
from danlu.lang.arg_types import BUILD_FUNCTION, ArgType
from danlu.lang.environment_builder import EnvironmentBuilder


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
