"""What a build file will say, before it is written: found by readers, spelled by :func:`render`."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

__all__ = ["Call", "Draft", "render"]

_WIDTH = 88


class Call(msgspec.Struct, frozen=True):
    """One call: ``io.copy`` and its arguments as values (strings, lists, dicts of strings)."""

    function: str
    arguments: tuple[object, ...] = ()
    named: tuple[tuple[str, object], ...] = ()


@dataclass
class Draft:
    """The build file of a project as far as it is known.

    ``source`` says in a few words where all this is from. ``python`` is a version (``3.11``) where
    one is asked for, ``wants_python`` whether there is to be one at all. ``guessed`` maps a
    distribution to the file whose import it was guessed from; ``left`` are lines that have
    no equivalent and become comments; ``notes`` are for the user's terminal.
    """

    source: str = ""
    os: str = ""
    image: str = ""
    python: str = ""
    wants_python: bool = False
    system: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    pip_index: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    extra_path: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    steps: list[Call] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def needs_python(self) -> bool:
        """Whether anything in it is Python's."""
        return bool(self.wants_python or self.python or self.packages or self.requirements)


def render(draft: Draft, *, python: bool = False) -> str:
    """The text of ``build.envd``, or with ``python`` of ``build.py``."""
    calls = list(_calls(draft))
    source = " ".join(draft.source.split())
    lines = [f"# The environment of this project, from {source}.", ""]
    if python:
        names = sorted({call.function.partition(".")[0] for call in calls})
        lines += [f"from danlu import {', '.join(names)}", "", ""]
    lines.append("def build():")
    for call in calls:
        lines += [f"    {line}".rstrip() for line in _spelled(call)]
    if draft.left:
        lines += ["", "    # Not carried over:"]
        lines += [f"    #   {line}".rstrip() for text in draft.left for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _calls(draft: Draft) -> list[Call]:
    calls = [Call("base", named=(("image", draft.image) if draft.image else ("os", draft.os),))]
    if draft.python:
        calls.append(Call("install.python", (draft.python,)))
    if draft.pip_index:
        calls.append(Call("config.pip_index", named=(("url", draft.pip_index),)))
    if draft.system:
        calls.append(Call("install.apt_packages", (_unique(draft.system),)))
    if draft.packages:
        calls.append(Call("install.python_packages", (_unique(draft.packages),)))
    for path in _unique(draft.requirements):
        calls.append(Call("install.python_packages", named=(("requirements", path),)))
    named: tuple[tuple[str, object], ...] = ()
    if draft.environment:
        named = (("env", draft.environment),)
    if draft.extra_path:
        named = (*named, ("extra_path", draft.extra_path))
    if named:
        calls.append(Call("runtime.environ", named=named))
    return [*calls, *draft.calls, *draft.steps]


def _unique(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _spelled(call: Call) -> list[str]:
    """A call on one line where it fits, else its lists and dicts one element a line."""
    parts = [_value(one) for one in call.arguments]
    parts += [f"{name}={_value(one)}" for name, one in call.named]
    flat = f"{call.function}({', '.join(parts)})"
    if len(flat) <= _WIDTH and "\n" not in flat:
        return [flat]
    if len(call.arguments) == 1 and not call.named and isinstance(call.arguments[0], list):
        rows = [f"    {_value(one)}," for one in call.arguments[0]]
        return [f"{call.function}([", *rows, "])"]
    lines = [f"{call.function}("]
    for name, value in [("", one) for one in call.arguments] + list(call.named):
        lines += _long(f"{name}=" if name else "", value)
    return [*lines, ")"]


def _long(start: str, value: object) -> list[str]:
    if isinstance(value, list):
        return [f"    {start}[", *(f"        {_value(one)}," for one in value), "    ],"]
    if isinstance(value, dict):
        rows = (f"        {_value(name)}: {_value(one)}," for name, one in value.items())
        return [f"    {start}{{", *rows, "    },"]
    return [f"    {start}{_value(value)},"]


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(k)}: {_value(v)}" for k, v in value.items()) + "}"
    return _string(str(value))


def _string(text: str) -> str:
    """A string literal that Starlark and Python read alike."""
    out = []
    for one in text:
        if one in '\\"':
            out.append(f"\\{one}")
        elif one in _ESCAPES:
            out.append(_ESCAPES[one])
        elif one.isprintable():
            out.append(one)
        else:
            code = ord(one)
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
