"""The build functions that a function copies from (``io.copy(source=…)``): find them, order them.

A *target* is a function with its arguments, such as ``build(gpu=True)``. Both languages evaluate
the targets that are needed, each once, in one evaluation of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from danlu.environment.types import Environment
from danlu.lang.arg_types import CallError
from danlu.lang.bind import bind_arguments
from danlu.lang.build_parameters import Value, bind_values, format_target
from danlu.lang.functions import FUNCTIONS
from danlu.lang.functions.steps import CopyStep
from danlu.lang.protocol import FunctionCall
from danlu.lang.source_files import SourceFiles

#: A function that copies from itself with other arguments would never end.
_MAX_TARGETS = 64


class SourceTarget(msgspec.Struct, frozen=True):
    """A function to evaluate with ``arguments``, and the call that copies from it, if any."""

    function: str
    arguments: Mapping[str, Value]
    call: FunctionCall | None = None

    @property
    def name(self) -> str:
        """The function with its arguments: its name in the lock."""
        return format_target(self.function, self.arguments)


class TooManyTargets(Exception):
    """There are more targets than a file can need; ``call`` names one more."""

    message = f"more than {_MAX_TARGETS} build functions copy files from one another"
    hint = "check the parameters: a function copies from itself with new ones again and again"

    def __init__(self, call: FunctionCall) -> None:
        super().__init__(self.message)
        self.call = call


def evaluate_source_targets(
    main: str,
    calls: Sequence[FunctionCall],
    text: str,
    evaluate: Callable[[SourceTarget], Sequence[FunctionCall]],
) -> None:
    """Evaluate the targets that ``calls`` of the target ``main`` need, each once.

    ``text`` is the build file's; ``evaluate`` returns the calls that a target makes. Raises
    :class:`TooManyTargets`.
    """
    known = {main}
    pending = _list_source_targets(calls, text)
    while pending:
        target = pending.pop(0)
        if target.name in known:
            continue
        known.add(target.name)
        if len(known) > _MAX_TARGETS and target.call is not None:
            raise TooManyTargets(target.call)
        pending += _list_source_targets(evaluate(target), text)


def _list_source_targets(calls: Iterable[FunctionCall], text: str) -> list[SourceTarget]:
    """Return what ``calls`` copy from; invalid calls are reported when they are declared."""
    targets = []
    for call in calls:
        function = FUNCTIONS[call.function]
        if not function.takes_functions:
            continue
        try:
            given = bind_arguments(function, call.args, call.kwargs)
            if source := given.get("source"):
                name: str = source.name  # type: ignore[attr-defined]
                values = bind_values(text, name, given.get("parameters", ()))  # type: ignore[arg-type]
                targets.append(SourceTarget(name, values, call))
        except CallError:
            continue
    return targets


def connect_sources(
    main: str, environments: Mapping[str, Environment], sources: SourceFiles
) -> Environment:
    """Return the environment of the target ``main`` with those that it copies from.

    They are sorted: each comes after those that it copies from itself. Raises ``BuildFileError``
    for a cycle, with the line that closes it.
    """
    order: list[str] = []
    _visit_target(main, (), environments, order, sources)
    others = {name: environments[name] for name in order if name != main}
    return replace(environments[main], sources=others)


def _visit_target(
    name: str,
    above: tuple[str, ...],
    environments: Mapping[str, Environment],
    order: list[str],
    sources: SourceFiles,
) -> None:
    if name in order:
        return
    path = (*above, name)
    for step in environments[name].steps:
        if not isinstance(step, CopyStep) or not step.function:
            continue
        if step.target_name in path:
            raise _make_cycle_error(step, path[path.index(step.target_name) :], sources)
        _visit_target(step.target_name, path, environments, order, sources)
    order.append(name)


def _make_cycle_error(step: CopyStep, cycle: tuple[str, ...], sources: SourceFiles) -> Exception:
    first = cycle[0]
    if len(cycle) == 1:
        message = f"io.copy(): '{first}' copies files of itself"
    else:
        chain = ", which copies files of ".join(f"'{name}'" for name in (*cycle[1:], first))
        message = f"io.copy(): '{first}' copies files of {chain}"
    return sources.make_error(
        message,
        step.span,
        hint="move what both need into a function that neither of them is",
    )
