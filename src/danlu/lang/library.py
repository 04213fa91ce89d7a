"""``include()`` in a ``build.py``: the functions of a Starlark repository, called from Python.

Each use of the library evaluates a small Starlark file in a child process, which includes the
repository and makes the one call; the calls that it reports are taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from danlu.lang.bind import bind
from danlu.lang.calls import Call, Frame
from danlu.lang.child import evaluate_in_child
from danlu.lang.explain import explain
from danlu.lang.finding import Finding
from danlu.lang.kinds import Foreign
from danlu.lang.limits import Limits
from danlu.lang.outcome import Outcome
from danlu.lang.recorder import Recorder
from danlu.lang.table import TABLE

__all__ = ["Library", "include"]

_FILE = "<include>"


def include(recorder: Recorder, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    """Read a repository and return its functions; note the call with the commit."""
    call = Call("include", args, dict(kwargs), recorder.frames())
    try:
        values = bind(TABLE["include"], args, kwargs)
    except Finding as finding:
        raise recorder.sources.error(
            finding.message,
            recorder.sources.call_span(call, finding.argument),
            hint=finding.hint,
            callers=call.frames[:-1],
        ) from None
    library = Library(recorder, str(values["url"]), str(values.get("ref", "")))
    outcome = library._evaluate("dir(lib)")
    commit = next(c.commit for c in outcome.calls if c.function == "include")
    recorder.calls.append(replace(call, commit=commit))
    library._take(outcome, skip_own_include=True)
    library._names = tuple(str(name) for name in _list(outcome.value))
    return library


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


class Library:
    """An included repository: its public names as attributes."""

    def __init__(self, recorder: Recorder, url: str, ref: str) -> None:
        self._recorder = recorder
        self._url = url
        self._ref = ref
        self._names: tuple[str, ...] = ()
        self._kinds: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._names:
            from danlu.lang.api import UnknownName
            from danlu.lang.finding import suggestion

            hint = suggestion(name, self._names, what="it has")
            raise UnknownName(f"{self._url} has no '{name}'", hint)
        value = self._evaluate(
            f"[type(lib.{name}), lib.{name} if type(lib.{name}) != 'function' else None]"
        ).value
        kind, content = _list(value) or ("function", None)
        return content if kind != "function" else _LibraryFunction(self, name)

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def __repr__(self) -> str:
        return f"<include {self._url}: {', '.join(sorted(self._names))}>"

    def _evaluate(self, expression: str) -> Outcome:
        address = f"{json.dumps(self._url)}, {json.dumps(self._ref)}"
        text = f"lib = include({address})\ndef build():\n    return {expression}\n"
        limits = Limits()
        channel = _WithFile(self._recorder, text)
        outcome = evaluate_in_child(_FILE, "build", channel, limits, value=True)
        above = self._recorder.frames()
        outcome = replace(
            outcome,
            calls=tuple(replace(c, frames=above + _own(c.frames)) for c in outcome.calls),
            failure=outcome.failure
            and replace(outcome.failure, frames=above + _own(outcome.failure.frames)),
        )
        if outcome.failure is not None:
            # A wrong call before it would be the cause; it is looked at when all is declared.
            self._take(outcome, skip_own_include=True)
            raise explain(
                outcome.failure,
                file=above[-1].file,
                function="build",
                sources=self._recorder.sources,
                limits=limits,
            )
        return outcome

    def _take(self, outcome: Outcome, *, skip_own_include: bool) -> None:
        own = True
        for call in outcome.calls:
            if skip_own_include and own and call.function == "include":
                # Nested includes come first; ours is the one that the small file itself makes.
                arguments = [str(value) for value in call.args]
                if arguments == [self._url, self._ref]:
                    own = False
                    continue
            self._recorder.calls.append(call)


class _LibraryFunction:
    """A function of an included repository."""

    def __init__(self, library: Library, name: str) -> None:
        self._library = library
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        library = self._library
        try:
            given = [literal(value) for value in args]
            given += [f"{name}={literal(value)}" for name, value in kwargs.items()]
        except Finding as finding:
            call = Call("include", args, kwargs, library._recorder.frames())
            raise library._recorder.sources.error(
                f"{self.__name__}(): {finding.message}",
                library._recorder.sources.call_span(call),
                hint=finding.hint,
            ) from None
        outcome = library._evaluate(f"lib.{self.__name__}({', '.join(given)})")
        library._take(outcome, skip_own_include=True)
        return outcome.value


class _WithFile:
    """A channel that has one more file."""

    def __init__(self, recorder: Recorder, text: str) -> None:
        self._desk = recorder.desk
        self._text = text

    def read(self, path: str) -> str | None:
        return self._text if path == _FILE else self._desk.read(path)

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        return self._desk.include(url, ref)


def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(frame for frame in frames if frame.file != _FILE)


def literal(value: object) -> str:
    """Return a plain value as Starlark writes it; :class:`Finding` for any other."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = (f"{literal(key)}: {literal(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    name = value.type if isinstance(value, Foreign) else type(value).__name__
    raise Finding(f"a value of type {name} cannot be given to an included function")
