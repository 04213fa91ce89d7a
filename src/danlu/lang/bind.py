"""Bind recorded calls to build functions, check them, and make an environment of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from danlu.environment.types import Environment
from danlu.errors import Span
from danlu.lang.arg_types import BUILD_FUNCTION, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.functions import FUNCTIONS
from danlu.lang.protocol import FunctionCall, SourceCalls
from danlu.lang.source_files import SourceFiles, find_definition
from danlu.util.suggest import suggest_name


def declare_targets(
    evaluated: Iterable[SourceCalls], *, file: str, sources: SourceFiles, written_order: bool
) -> dict[str, Environment]:
    """Return what the calls of each evaluated target describe, by the target's name.

    See :func:`declare_calls`.
    """
    return {
        source.target: declare_calls(
            source.calls,
            name=source.function,
            file=file,
            sources=sources,
            span=find_definition(file, source.function, sources),
            written_order=written_order,
        )
        for source in evaluated
    }


def declare_calls(
    calls: Iterable[FunctionCall],
    *,
    name: str,
    file: str,
    sources: SourceFiles,
    span: Span,
    written_order: bool,
) -> Environment:
    """Return what the calls describe. Raises ``BuildFileError`` for the first that is wrong.

    ``span`` is the definition of the build function ``name``, for what the file does not declare.
    ``written_order`` keeps the steps as written (``build.py``); otherwise ``io.*`` come before
    ``run()`` (envd's order).
    """
    env = EnvironmentBuilder(sources.text(file))
    for call in calls:
        try:
            _declare_call(env, call, sources)
        except CallError as error:
            raise sources.make_error(
                error.message,
                sources.call_span(call, _find_written_argument(call, error.argument)),
                hint=error.hint,
                callers=call.frames[:-1],
            ) from None
    return env.build(name=name, file=file, span=span, written_order=written_order)


def _declare_call(env: EnvironmentBuilder, call: FunctionCall, sources: SourceFiles) -> None:
    function = FUNCTIONS[call.function]
    given = bind_arguments(function, call.args, call.kwargs)
    bound = BoundCall(
        function, given, sources.user_span(call), call.commit, sources.find_included_place(call)
    )
    if function.declare is not None:
        function.declare(env, bound)


def _find_written_argument(call: FunctionCall, argument: str | int | None) -> str | int | None:
    """Return how an argument is written in the call: its keyword, or its position."""
    if not isinstance(argument, str):
        return argument
    function = FUNCTIONS[call.function]
    for name, value in call.kwargs.items():
        parameter = function.find_parameter(name, value)
        if parameter is not None and parameter.name == argument:
            return name
    try:
        names = list(_map_positional(function, call.args))
    except CallError:
        return argument
    return names.index(argument) if argument in names else argument


def bind_arguments(
    function: BuildFunction, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the checked values of the arguments that were given, by parameter name.

    None for a parameter with a default counts as not given, except for functions. Raises
    :class:`CallError`.
    """
    given = _group_by_parameter(function, args, kwargs)
    values: dict[str, object] = {}
    for parameter in function.parameters:
        if parameter.name not in given:
            if parameter.is_required:
                raise CallError(
                    f"{function.name}() is missing its argument '{parameter.name}'",
                    hint=_signature_hint(function),
                )
            continue
        argument, value = given[parameter.name]
        # None as a function is the value of a call: `source=build()`.
        if value is None and not parameter.is_required and parameter.type is not BUILD_FUNCTION:
            continue
        values[parameter.name] = _check_value(function, parameter, value, argument)
    return values


def _group_by_parameter(
    function: BuildFunction, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, tuple[str | int, object]]:
    """Return each given value with the keyword or position it was given by."""
    given: dict[str, tuple[str | int, object]] = {}
    for position, (name, value) in enumerate(_map_positional(function, args).items()):
        given[name] = (position, value)
    for name, value in kwargs.items():
        parameter = function.find_parameter(name, value)
        if parameter is None:
            raise CallError(
                f"{function.name}() has no argument '{name}'",
                hint=suggest_name(name, _parameter_names(function), what="its arguments are")
                or "it takes no arguments",
                argument=name,
            )
        if parameter.name in given:
            raise CallError(
                f"{function.name}() got multiple values for argument '{parameter.name}'",
                argument=name,
            )
        given[parameter.name] = (name, value)
    return given


def _map_positional(function: BuildFunction, args: Sequence[object]) -> Mapping[str, object]:
    """Return the positional arguments by parameter name. Raises for too many."""
    if function.positional_mapper is not None:
        return function.positional_mapper(tuple(args))
    names = [parameter.name for parameter in function.parameters if not parameter.keyword_only]
    if len(args) > len(names):
        takes = f"at most {len(names)}" if names else "no"
        raise CallError(
            f"{function.name}() takes {takes} positional argument{'s' if len(names) != 1 else ''}"
            f" but got {len(args)}",
            hint=_suggest_list(args) or _signature_hint(function),
            argument=len(names),
        )
    return dict(zip(names, args, strict=False))


def _parameter_names(function: BuildFunction) -> list[str]:
    return [parameter.name for parameter in function.parameters]


def _suggest_list(args: Sequence[object]) -> str:
    if len(args) > 1 and all(isinstance(value, str) for value in args):
        return "put several strings in a list: [" + ", ".join(f'"{text}"' for text in args) + "]"
    return ""


def _signature_hint(function: BuildFunction) -> str:
    return f"usage: {function.name}({', '.join(_parameter_names(function))})"


def _check_value(
    function: BuildFunction, parameter: Parameter, value: object, argument: str | int
) -> object:
    try:
        return parameter.type.check(value)
    except CallError as error:
        shown = argument if isinstance(argument, str) else parameter.name
        raise CallError(
            f"{function.name}(): argument '{shown}' {error.message}",
            hint=error.hint,
            argument=argument,
        ) from None
