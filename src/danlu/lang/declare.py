"""Recorded calls → :class:`Environment`: bind, check, and put every call in its place.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from danlu.environment.types import Base, Environment, IncludeUse, Other, Run
from danlu.errors import Span
from danlu.lang.bind import bind, positional
from danlu.lang.calls import Call
from danlu.lang.declarations import DECLARE
from danlu.lang.draft import Draft
from danlu.lang.entries.universe import DEFAULT_IMAGE
from danlu.lang.finding import Finding
from danlu.lang.function import Function
from danlu.lang.sources import Sources
from danlu.lang.table import TABLE

__all__ = ["declare"]


def declare(
    calls: Iterable[Call],
    *,
    name: str,
    file: str,
    sources: Sources,
    place: Span,
    written_order: bool,
) -> Environment:
    """Return what the calls describe; raise ``BuildFileError`` for the first that is wrong.

    ``place`` is the build function's own, for what is not written. ``written_order`` keeps the
    steps as written (``build.py``); else ``io.*`` come before ``run()`` (envd's order, D1).
    """
    draft = Draft()
    for call in calls:
        try:
            _declare_one(draft, call, sources)
        except Finding as finding:
            raise sources.error(
                finding.message,
                sources.call_span(call, _written(call, finding.argument)),
                hint=finding.hint,
                callers=call.frames[:-1],
            ) from None
    return _environment(draft, name=name, file=file, place=place, written_order=written_order)


def _written(call: Call, argument: str | int | None) -> str | int | None:
    """Return how an argument is found in the call: its keyword as written, or its position."""
    if not isinstance(argument, str) or argument in call.kwargs:
        return argument
    function = TABLE[call.function]
    for name in call.kwargs:
        parameter = function.parameter(name)
        if parameter is not None and parameter.name == argument:
            return name
    try:
        names = list(positional(function, call.args))
    except Finding:
        return argument
    return names.index(argument) if argument in names else argument


def _declare_one(draft: Draft, call: Call, sources: Sources) -> None:
    function = TABLE[call.function]
    values = bind(function, call.args, call.kwargs)
    span = sources.user_span(call)
    if function.name == "include":
        ref = values.get("ref", "")
        draft.include(IncludeUse(str(values["url"]), str(ref), call.commit, span=span))
        return
    handler: Callable[..., None] | None = DECLARE.get(function.name)
    if handler is not None:
        handler(draft, _filled(function, values), span)
        if not function.built:
            draft.other(_other(function, values, span))
        return
    draft.other(_other(function, values, span), single=function.single)


def _filled(function: Function, values: Mapping[str, object]) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for parameter in function.parameters:
        default = None if parameter.required else parameter.default
        filled[parameter.name] = values.get(parameter.name, default)
    filled["given"] = frozenset(values)
    return filled


def _other(function: Function, values: Mapping[str, object], span: Span) -> Other:
    arguments = []
    for name in sorted(values):
        parameter = function.parameter(name)
        value = values[name]
        if parameter is not None and not parameter.required and value == parameter.default:
            continue
        if parameter is not None and parameter.kind.annotation.startswith("Mapping"):
            value = dict(value) if isinstance(value, tuple) else value
        arguments.append((name, canonical(value)))
    return Other(function.name, tuple(arguments), at_start=function.at_start, span=span)


def canonical(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _environment(
    draft: Draft, *, name: str, file: str, place: Span, written_order: bool
) -> Environment:
    steps = tuple(draft.steps)
    if not written_order:
        steps = tuple(sorted(steps, key=lambda step: isinstance(step, Run)))
    return Environment(
        name=name,
        file=file,
        base=draft.one.get("base", Base(image=DEFAULT_IMAGE, span=place)),
        python=draft.one.get("install.python"),
        uv=draft.one.get("install.uv"),
        system_packages=tuple(draft.system_packages),
        python_packages=tuple(draft.python_packages),
        apt_source=draft.one.get("config.apt_source"),
        pip_index=draft.one.get("config.pip_index"),
        owner=draft.one.get("config.owner"),
        entrypoint=draft.one.get("config.entrypoint"),
        jupyter=draft.one.get("config.jupyter"),
        shell=draft.one.get("shell"),
        git_config=draft.one.get("git_config"),
        environ=tuple(draft.environ),
        steps=steps,
        other=tuple(draft.others),
        includes=tuple(draft.includes),
    )
