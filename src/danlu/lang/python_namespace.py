"""The build functions as Python objects, for ``build.py``; :mod:`danlu` exports them by name.

They are made from the registered functions, and so are the type stubs in ``danlu/__init__.pyi``
(``scripts/docs.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import wrap
from typing import Any

from danlu.environment.runtime_settings import DATA_SCHEME
from danlu.lang.build_function import REQUIRED, BuildFunction
from danlu.lang.call_recorder import active_recorder
from danlu.lang.error_messages import explain_unknown_attribute
from danlu.lang.functions import FUNCTIONS, NAMESPACES
from danlu.lang.functions.data import PATHS


class UnknownNameError(AttributeError):
    """A name that the language does not have, with the nearest one as a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class FunctionNamespace:
    """``install``, ``config`` …: functions by short name. Read-only."""

    __slots__ = ("_members", "_name")

    def __init__(self, name: str, members: dict[str, Any]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_members", members)

    def __getattr__(self, name: str) -> Any:
        if name in self._members:
            return self._members[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownNameError(*explain_unknown_attribute(self._name, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._name}.{name} cannot be set")

    def __dir__(self) -> list[str]:
        return sorted(self._members)

    def __repr__(self) -> str:
        return f"<danlu.{self._name}: {', '.join(sorted(self._members))}>"


def build_status(function: BuildFunction) -> str:
    """Return what this version does with a call of the function."""
    return "at start" if function.runtime_only else "built"


_STATUS_SENTENCES = {
    "built": "",
    "at start": "Takes effect when the environment starts; changes nothing in the image.",
}


def format_docstring(function: BuildFunction) -> str:
    """Return what the function does, its arguments and an example, for ``help()`` and stubs."""
    blocks = ["\n".join(wrap(function.doc, 88))]
    sentence = _STATUS_SENTENCES[build_status(function)]
    if sentence:
        blocks.append(sentence)
    if function.parameters:
        lines = ["Args:"]
        for parameter in function.parameters:
            lines += wrap(
                f"{parameter.name}: {parameter.doc}",
                84,
                initial_indent="    ",
                subsequent_indent="        ",
            )
        blocks.append("\n".join(lines))
    if function.example:
        blocks.append(f"Example:\n    {function.example}")
    return "\n\n".join(blocks)


def _make_callable(function: BuildFunction) -> Callable[..., Any]:
    def call(*args: object, **kwargs: object) -> Any:
        recorder = active_recorder(function.name)
        recorder.record(function.name, args, kwargs)
        if function.name == "data.envd":
            return f"{DATA_SCHEME}{args[0] if args else kwargs.get('name', '')}"
        return None

    call.__name__ = function.short_name
    call.__qualname__ = function.name
    call.__module__ = "danlu"
    call.__doc__ = format_docstring(function)
    call.__signature__ = _make_signature(function)  # type: ignore[attr-defined]
    return call


def _make_signature(function: BuildFunction) -> inspect.Signature:
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                parameter.name,
                kinds.KEYWORD_ONLY if parameter.keyword_only else kinds.POSITIONAL_OR_KEYWORD,
                default=kinds.empty if parameter.default is REQUIRED else parameter.default,
                annotation=parameter.type.annotation,
            )
            for parameter in function.parameters
        ],
        return_annotation=function.returns,
    )


def _build_namespaces() -> dict[str, Any]:
    names: dict[str, Any] = {}
    members: dict[str, dict[str, Any]] = {namespace: {} for namespace in NAMESPACES}
    for function in FUNCTIONS.values():
        if function.starlark_only:
            continue
        home = members[function.namespace] if function.namespace else names
        home[function.short_name] = _make_callable(function)
    members["data"]["path"] = FunctionNamespace("data.path", dict(PATHS))
    names.update({name: FunctionNamespace(name, content) for name, content in members.items()})
    return names


LANGUAGE = _build_namespaces()
"""All names that a ``build.py`` can import from ``danlu``."""
