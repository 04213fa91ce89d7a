"""The content of a build file before it is written: filled by readers, then rendered."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import msgspec

from danlu.util.urls import mask_credentials

_MAX_LINE_WIDTH = 88

#: Characters that stand for parameters of the build function in the texts of a draft, as a range of
#: a regular expression. No text has them: their plane of Unicode is for private use.
PLACEHOLDERS = "\U0010f000-\U0010f0ff"
_FIRST_PLACEHOLDER = 0x10F000


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


@dataclass
class BuildFileDraft:
    """The content of a build file.

    ``source`` describes where it comes from. ``python`` is the requested version (``3.11``), if
    any; ``wants_python`` says whether Python is needed at all. ``guessed`` maps distributions to
    the file whose import they were guessed from. ``untranslated`` lines have no equivalent and
    become comments; ``notes`` are shown to the user. ``functions`` are build functions, by name,
    whose results steps copy from. ``parameters`` are those of the functions, with their defaults;
    texts contain placeholders for them. ``must_be_complete`` says that ``untranslated`` is a loss.
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
    steps: list[DraftCall] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    untranslated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    functions: dict[str, BuildFileDraft] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    must_be_complete: bool = False

    def add_parameter(self, name: str, default: str) -> str:
        """Add a parameter, unless there is one of that name; return its placeholder."""
        self.parameters.setdefault(name, default)
        return chr(_FIRST_PLACEHOLDER + list(self.parameters).index(name))

    def insert_defaults(self, text: str) -> str:
        """Return a text with the defaults of parameters."""
        for number, default in enumerate(self.parameters.values()):
            text = text.replace(chr(_FIRST_PLACEHOLDER + number), default)
        return text

    def find_parameters(self, other: BuildFileDraft) -> dict[str, str]:
        """Return the parameters that another function of this file uses, and their placeholders."""
        if not self.parameters:
            return {}
        text = json.dumps(msgspec.to_builtins(_list_statements(other)), ensure_ascii=False)
        placeholders = {name: self.add_parameter(name, "") for name in self.parameters}
        return {name: char for name, char in placeholders.items() if char in text}

    @property
    def copies_after_running(self) -> bool:
        """Whether steps of ``build.envd`` would not run in the order of the draft."""
        return any(
            "run io.copy" in " ".join(step.function for step in draft.steps)
            for draft in (self, *self.functions.values())
        )

    @property
    def needs_python(self) -> bool:
        """Whether the environment needs Python."""
        return bool(self.wants_python or self.python or self.packages or self.requirements)


def render_draft(draft: BuildFileDraft, *, python: bool = False) -> str:
    """Render ``build.envd``, or ``build.py`` with ``python``."""
    drafts = {**draft.functions, "build": draft}
    parameters = {
        name: ", ".join(
            f"{parameter}={_quote_string(draft.parameters[parameter])}"
            for parameter in draft.find_parameters(other)
        )
        for name, other in drafts.items()
    }
    calls = [call for other in drafts.values() for call in _list_statements(other)]
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
        lines += [*(space if number else ()), f"def {name}({parameters[name]}):"]
        lines += _render_body(function)
    text = "\n".join(lines) + "\n"
    for parameter, placeholder in draft.find_parameters(draft).items():
        text = text.replace(placeholder, parameter)
    return text


def _list_statements(draft: BuildFileDraft) -> list[DraftCall]:
    return [*_list_calls(draft), *draft.steps]


def _render_body(draft: BuildFileDraft) -> list[str]:
    lines = []
    for statement in _list_statements(draft):
        lines += [f"    {line}".rstrip() for line in _format_call(statement)]
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
    flat = f"    {start}{_format_value(value)},"
    if len(flat) <= _MAX_LINE_WIDTH and "\n" not in flat:
        return [flat]
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
    return [flat]


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
    """Return an expression that is valid in both Starlark and Python."""
    if re.search(f"[{PLACEHOLDERS}]", text):
        parts = filter(None, re.split(f"([{PLACEHOLDERS}])", text))
        return " + ".join(
            part if re.match(f"[{PLACEHOLDERS}]", part) else _quote_string(part) for part in parts
        )
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
