"""The content of a build file before it is written: filled by readers, then rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from danlu.util.urls import mask_credentials

_MAX_LINE_WIDTH = 88


class DraftCall(msgspec.Struct, frozen=True):
    """A call such as ``io.copy``.

    Arguments are strings, numbers, lists and dicts of strings, names of functions, and calls
    without keywords.
    """

    function: str
    arguments: tuple[object, ...] = ()
    keywords: tuple[tuple[str, object], ...] = ()


class DraftName(msgspec.Struct, frozen=True):
    """The name of a function of the build file, as an argument."""

    name: str


class DraftComment(msgspec.Struct, frozen=True):
    """Lines in place of a step that has no equivalent."""

    text: str


@dataclass
class BuildFileDraft:
    """The content of a build file.

    ``source`` describes where it comes from. ``python`` is the requested version (``3.11``), if
    any; ``wants_python`` says whether Python is needed at all. ``guessed`` maps distributions to
    the file whose import they were guessed from. ``untranslated`` lines have no equivalent and
    become comments; ``notes`` are shown to the user. ``functions`` are build functions, by name,
    whose results steps copy from.
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
    calls: list[DraftCall] = field(default_factory=list)
    steps: list[DraftCall | DraftComment] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    untranslated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    functions: dict[str, BuildFileDraft] = field(default_factory=dict)

    @property
    def needs_python(self) -> bool:
        """Whether the environment needs Python."""
        return bool(self.wants_python or self.python or self.packages or self.requirements)


def render_draft(draft: BuildFileDraft, *, python: bool = False) -> str:
    """Render ``build.envd``, or ``build.py`` with ``python``."""
    drafts = {**draft.functions, "build": draft}
    statements = [item for other in drafts.values() for item in _list_statements(other)]
    calls = [call for call in statements if isinstance(call, DraftCall)]
    source = " ".join(draft.source.split())
    lines = [f"# The environment of this project, from {source}.", ""]
    if python:
        inner = [
            value for call in calls for value in call.arguments if isinstance(value, DraftCall)
        ]
        names = sorted({call.function.partition(".")[0] for call in [*calls, *inner]})
        lines += [f"from danlu import {', '.join(names)}", "", ""]
    space = ["", ""] if python else [""]
    for number, (name, function) in enumerate(drafts.items()):
        lines += [*(space if number else ()), *_render_function(name, function)]
    return "\n".join(lines) + "\n"


def _list_statements(draft: BuildFileDraft) -> list[DraftCall | DraftComment]:
    return [*_list_calls(draft), *draft.steps]


def _render_function(name: str, draft: BuildFileDraft) -> list[str]:
    lines = [f"def {name}():"]
    for statement in _list_statements(draft):
        formatted = (
            _format_comment(statement.text)
            if isinstance(statement, DraftComment)
            else _format_call(statement)
        )
        lines += [f"    {line}".rstrip() for line in formatted]
    if draft.untranslated:
        lines += ["", "    # Skipped (no equivalent):"]
        lines += [
            f"    {line}" for text in draft.untranslated for line in _format_comment(text, "  ")
        ]
    return lines


def _list_calls(draft: BuildFileDraft) -> list[DraftCall]:
    calls = [
        DraftCall("base", keywords=(("image", draft.image) if draft.image else ("os", draft.os),))
    ]
    if draft.python:
        calls.append(DraftCall("install.python", (draft.python,)))
    if draft.pip_index:
        calls.append(DraftCall("config.pip_index", keywords=(("url", draft.pip_index),)))
    if draft.system:
        calls.append(DraftCall("install.apt_packages", (_unique_names(draft.system),)))
    if draft.packages:
        calls.append(DraftCall("install.python_packages", (_unique_names(draft.packages),)))
    for path in _unique_names(draft.requirements):
        calls.append(DraftCall("install.python_packages", keywords=(("requirements", path),)))
    named: tuple[tuple[str, object], ...] = ()
    if draft.environment:
        named = (("env", draft.environment),)
    if draft.extra_path:
        named = (*named, ("extra_path", draft.extra_path))
    if named:
        calls.append(DraftCall("runtime.environ", keywords=named))
    return [*calls, *draft.calls]


def _format_comment(text: str, indent: str = "") -> list[str]:
    return [f"# {indent}{mask_credentials(line)}".rstrip() for line in text.splitlines()]


def _unique_names(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _format_call(call: DraftCall) -> list[str]:
    """Format a call in one line if it fits, else lists and dicts with one element a line."""
    parts = [_format_value(argument) for argument in call.arguments]
    parts += [f"{name}={_format_value(argument)}" for name, argument in call.keywords]
    flat = f"{call.function}({', '.join(parts)})"
    if len(flat) <= _MAX_LINE_WIDTH and "\n" not in flat:
        return [flat]
    if len(call.arguments) == 1 and not call.keywords and isinstance(call.arguments[0], list):
        rows = [f"    {_format_value(element)}," for element in call.arguments[0]]
        return [f"{call.function}([", *rows, "])"]
    lines = [f"{call.function}("]
    for name, value in [("", argument) for argument in call.arguments] + list(call.keywords):
        lines += _format_argument(f"{name}=" if name else "", value)
    return [*lines, ")"]


def _format_argument(start: str, value: object) -> list[str]:
    if isinstance(value, list):
        return [
            f"    {start}[",
            *(f"        {_format_value(element)}," for element in value),
            "    ],",
        ]
    if isinstance(value, dict):
        rows = (
            f"        {_format_value(name)}: {_format_value(element)},"
            for name, element in value.items()
        )
        return [f"    {start}{{", *rows, "    },"]
    return [f"    {start}{_format_value(value)},"]


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_format_value(element) for element in value) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_format_value(k)}: {_format_value(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, DraftCall):
        return f"{value.function}({', '.join(map(_format_value, value.arguments))})"
    if isinstance(value, DraftName):
        return value.name
    return str(value) if isinstance(value, int) else _quote_string(str(value))


def _quote_string(text: str) -> str:
    """Return a string literal that is valid in both Starlark and Python."""
    out = []
    for character in text:
        if character in '\\"':
            out.append(f"\\{character}")
        elif character in _CHARACTER_ESCAPES:
            out.append(_CHARACTER_ESCAPES[character])
        elif character.isprintable():
            out.append(character)
        else:
            code = ord(character)
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


_CHARACTER_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
