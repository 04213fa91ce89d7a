"""Bind a call's arguments to a function's parameters, or say exactly what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from danlu.lang.finding import Finding, suggestion
from danlu.lang.function import Function, Parameter

__all__ = ["bind", "positional"]


def bind(
    function: Function, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the checked values of the arguments that were given, by parameter name.

    None for a parameter with a default counts as not given. Raises :class:`Finding`.
    """
    given = _by_parameter(function, args, kwargs)
    values: dict[str, object] = {}
    for parameter in function.parameters:
        if parameter.name not in given:
            if parameter.required:
                raise _missing(function, parameter)
            continue
        argument, value = given[parameter.name]
        if value is None and not parameter.required:
            continue
        values[parameter.name] = _check(function, parameter, value, argument)
    return values


def _by_parameter(
    function: Function, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, tuple[str | int, object]]:
    given: dict[str, tuple[str | int, object]] = {}
    for position, (name, value) in enumerate(positional(function, args).items()):
        given[name] = (position, value)
    for name, value in kwargs.items():
        parameter = function.parameter(name)
        if parameter is None:
            raise Finding(
                f"{function.name}() has no argument '{name}'",
                hint=suggestion(name, _names(function), what="its arguments are")
                or "it takes no arguments",
                argument=name,
            )
        if parameter.name in given:
            raise Finding(
                f"{function.name}() is given its argument '{parameter.name}' twice", argument=name
            )
        given[parameter.name] = (name, value)
    return given


def _names(function: Function) -> list[str]:
    return [parameter.name for parameter in function.parameters]


def positional(function: Function, args: Sequence[object]) -> Mapping[str, object]:
    """Return the positional arguments by parameter name; :class:`Finding` for too many."""
    if function.spread is not None:
        return function.spread(tuple(args))
    names = [parameter.name for parameter in function.parameters if not parameter.keyword_only]
    if len(args) > len(names):
        takes = f"takes at most {len(names)}" if names else "takes no"
        raise Finding(
            f"{function.name}() {takes} argument{'s' if len(names) != 1 else ''} by position, "
            f"{len(args)} given",
            hint=_several_texts_hint(args) or _signature_hint(function),
            argument=len(names),
        )
    return dict(zip(names, args, strict=False))


def _several_texts_hint(args: Sequence[object]) -> str:
    if len(args) > 1 and all(isinstance(value, str) for value in args):
        return "several texts go in one list: [" + ", ".join(f'"{text}"' for text in args) + "]"
    return ""


def _signature_hint(function: Function) -> str:
    names = ", ".join(_names(function))
    return f"it is {function.name}({names})"


def _missing(function: Function, parameter: Parameter) -> Finding:
    return Finding(
        f"{function.name}() needs its argument '{parameter.name}'",
        hint=_signature_hint(function),
    )


def _check(function: Function, parameter: Parameter, value: object, argument: str | int) -> object:
    try:
        return parameter.kind.check(value)
    except Finding as finding:
        shown = argument if isinstance(argument, str) else parameter.name
        raise Finding(
            f"{function.name}(): argument '{shown}' {finding.message}",
            hint=finding.hint,
            argument=argument,
        ) from None
