"""One function of the build language: its parameters, their types and defaults, its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec

from danlu.lang.kinds import Kind

__all__ = ["REQUIRED", "Function", "Parameter", "Required"]


class Required(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


class Parameter(msgspec.Struct, frozen=True):
    """A parameter; ``aliases`` are other spellings that are accepted (language v0).

    ``default`` is in the form that users write (lists as tuples); None for ``not given`` where
    the function itself decides.
    """

    name: str
    kind: Kind
    doc: str
    default: object = REQUIRED
    aliases: tuple[str, ...] = ()
    keyword_only: bool = False

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is REQUIRED


class Function(msgspec.Struct, frozen=True):
    """A function of the table.

    ``built``: this version builds it; ``at_start``: it changes nothing in the image and waits
    for ``danlu up``; neither: validated and planned only. ``single``: two calls with other
    values are an error. ``returns`` is the Python annotation of its value. ``spread`` reads the
    positional arguments where two versions of the language mean different things by them.
    """

    name: str
    doc: str
    parameters: tuple[Parameter, ...] = ()
    versions: tuple[str, ...] = ("v0", "v1")
    built: bool = False
    at_start: bool = False
    single: bool = False
    returns: str = "None"
    example: str = ""
    spread: Callable[[tuple[object, ...]], Mapping[str, object]] | None = None

    @property
    def namespace(self) -> str:
        """``install`` of ``install.python``; empty for a plain function."""
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        """``python`` of ``install.python``."""
        return self.name.rpartition(".")[2]

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter of that name or alias."""
        for parameter in self.parameters:
            if name == parameter.name or name in parameter.aliases:
                return parameter
        return None
