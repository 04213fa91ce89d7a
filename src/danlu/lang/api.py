"""The functions of the build language as Python objects; ``danlu`` hands them out by name.

They are made from the table. Their types for checkers and editors are in ``danlu/__init__.pyi``,
made from the same table by ``python -m danlu.lang.reference``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from danlu.lang.entries.data import DATA_SCHEME
from danlu.lang.explain import unknown_attribute
from danlu.lang.function import REQUIRED, Function
from danlu.lang.recorder import active
from danlu.lang.stubs import docstring
from danlu.lang.table import NAMESPACES, PATHS, TABLE

__all__ = ["LANGUAGE", "Namespace", "UnknownName"]


class UnknownName(AttributeError):
    """A name that the language does not have, with the nearest that it has."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class Namespace:
    """``install``, ``config`` …: functions by short name; nothing can be added or changed."""

    __slots__ = ("_members", "_name")

    def __init__(self, name: str, members: dict[str, Any]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_members", members)

    def __getattr__(self, name: str) -> Any:
        if name in self._members:
            return self._members[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownName(*unknown_attribute(self._name, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._name}.{name} cannot be set")

    def __dir__(self) -> list[str]:
        return sorted(self._members)

    def __repr__(self) -> str:
        return f"<danlu.{self._name}: {', '.join(sorted(self._members))}>"


def _callable(function: Function) -> Callable[..., Any]:
    def call(*args: object, **kwargs: object) -> Any:
        recorder = active(function.name)
        if function.name == "include":
            from danlu.lang.library import include

            return include(recorder, args, kwargs)
        recorder.record(function.name, args, kwargs)
        if function.name == "data.envd":
            return f"{DATA_SCHEME}{args[0] if args else kwargs.get('name', '')}"
        return None

    call.__name__ = function.short_name
    call.__qualname__ = function.name
    call.__module__ = "danlu"
    call.__doc__ = docstring(function)
    call.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return call


def _signature(function: Function) -> inspect.Signature:
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                parameter.name,
                kinds.KEYWORD_ONLY if parameter.keyword_only else kinds.POSITIONAL_OR_KEYWORD,
                default=kinds.empty if parameter.default is REQUIRED else parameter.default,
                annotation=parameter.kind.annotation,
            )
            for parameter in function.parameters
        ],
        return_annotation=function.returns,
    )


def _language() -> dict[str, Any]:
    names: dict[str, Any] = {}
    members: dict[str, dict[str, Any]] = {namespace: {} for namespace in NAMESPACES}
    for function in TABLE.values():
        home = members[function.namespace] if function.namespace else names
        home[function.short_name] = _callable(function)
    members["data"]["path"] = Namespace("data.path", dict(PATHS))
    names.update({name: Namespace(name, content) for name, content in members.items()})
    return names


LANGUAGE = _language()
"""All names that a ``build.py`` can import from ``danlu``."""
