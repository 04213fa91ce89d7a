"""``include()`` in a ``build.py``: call the functions of a Starlark repository from Python.

Each use of the library evaluates a small Starlark file in a child process. It includes the
repository and makes the one call; the calls it reports are added to those of the ``build.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from danlu.lang.arg_types import CallError, ForeignValue
from danlu.lang.bind import bind_arguments
from danlu.lang.call_recorder import CallRecorder
from danlu.lang.error_messages import translate_failure
from danlu.lang.functions import FUNCTIONS
from danlu.lang.protocol import CallFrame, EvaluationLimits, EvaluationResult, FunctionCall
from danlu.lang.subprocess_eval import evaluate_in_child
from danlu.util.suggest import suggest_name

_FILE = "<include>"


def include_repository(
    recorder: CallRecorder, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Any:
    """Read a repository and return its functions; record the call with the commit."""
    call = FunctionCall("include", args, dict(kwargs), recorder.capture_frames())
    try:
        values = bind_arguments(FUNCTIONS["include"], args, kwargs)
    except CallError as finding:
        raise recorder.sources.make_error(
            finding.message,
            recorder.sources.call_span(call, finding.argument),
            hint=finding.hint,
            callers=call.frames[:-1],
        ) from None
    library = IncludedLibrary(recorder, str(values["url"]), str(values.get("ref", "")))
    outcome = library._evaluate_expression("dir(lib)")
    commit = next(c.commit for c in outcome.calls if c.function == "include")
    recorder.calls.append(replace(call, commit=commit))
    library._record_calls(outcome, skip_own_include=True)
    library._names = tuple(str(name) for name in _as_list(outcome.value))
    return library


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


class IncludedLibrary:
    """An included repository: its public names as attributes."""

    def __init__(self, recorder: CallRecorder, url: str, ref: str) -> None:
        self._recorder = recorder
        self._url = url
        self._ref = ref
        self._names: tuple[str, ...] = ()
        self._kinds: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._names:
            # python_namespace makes include(), and so imports this module.
            from danlu.lang.python_namespace import UnknownNameError

            hint = suggest_name(name, self._names, what="it has")
            raise UnknownNameError(f"{self._url} has no '{name}'", hint)
        value = self._evaluate_expression(
            f"[type(lib.{name}), lib.{name} if type(lib.{name}) != 'function' else None]"
        ).value
        kind, content = _as_list(value) or ("function", None)
        return content if kind != "function" else _LibraryFunction(self, name)

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def __repr__(self) -> str:
        return f"<include {self._url}: {', '.join(sorted(self._names))}>"

    def _evaluate_expression(self, expression: str) -> EvaluationResult:
        address = f"{json.dumps(self._url)}, {json.dumps(self._ref)}"
        text = f"lib = include({address})\ndef build():\n    return {expression}\n"
        limits = EvaluationLimits()
        channel = _ProviderWithFile(self._recorder, text)
        outcome = evaluate_in_child(_FILE, "build", channel, limits, value=True)
        above = self._recorder.capture_frames()
        outcome = replace(
            outcome,
            calls=tuple(
                replace(c, frames=above + _drop_wrapper_frames(c.frames)) for c in outcome.calls
            ),
            failure=outcome.failure
            and replace(
                outcome.failure, frames=above + _drop_wrapper_frames(outcome.failure.frames)
            ),
        )
        if outcome.failure is not None:
            # An invalid call before the failure would be its cause; it is checked with all others.
            self._record_calls(outcome, skip_own_include=True)
            raise translate_failure(
                outcome.failure,
                file=above[-1].file,
                function="build",
                sources=self._recorder.sources,
                limits=limits,
            )
        return outcome

    def _record_calls(self, outcome: EvaluationResult, *, skip_own_include: bool) -> None:
        own = True
        for call in outcome.calls:
            if skip_own_include and own and call.function == "include":
                # Nested includes come first; this one is made by the small file itself.
                arguments = [str(value) for value in call.args]
                if arguments == [self._url, self._ref]:
                    own = False
                    continue
            self._recorder.calls.append(call)


class _LibraryFunction:
    """A function of an included repository."""

    def __init__(self, library: IncludedLibrary, name: str) -> None:
        self._library = library
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        library = self._library
        try:
            given = [starlark_literal(value) for value in args]
            given += [f"{name}={starlark_literal(value)}" for name, value in kwargs.items()]
        except CallError as finding:
            call = FunctionCall("include", args, kwargs, library._recorder.capture_frames())
            raise library._recorder.sources.make_error(
                f"{self.__name__}(): {finding.message}",
                library._recorder.sources.call_span(call),
                hint=finding.hint,
            ) from None
        outcome = library._evaluate_expression(f"lib.{self.__name__}({', '.join(given)})")
        library._record_calls(outcome, skip_own_include=True)
        return outcome.value


class _ProviderWithFile:
    """The recorder's loader with one more file."""

    def __init__(self, recorder: CallRecorder, text: str) -> None:
        self._loader = recorder.loader
        self._text = text

    def read(self, path: str) -> str | None:
        return self._text if path == _FILE else self._loader.read(path)

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        return self._loader.include(url, ref)


def _drop_wrapper_frames(frames: tuple[CallFrame, ...]) -> tuple[CallFrame, ...]:
    return tuple(frame for frame in frames if frame.file != _FILE)


def starlark_literal(value: object) -> str:
    """Return plain data as a Starlark literal. Raises :class:`CallError` for anything else."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(starlark_literal(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = (
            f"{starlark_literal(key)}: {starlark_literal(item)}" for key, item in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    name = value.type if isinstance(value, ForeignValue) else type(value).__name__
    raise CallError(f"a value of type {name} cannot be passed to an included function")
