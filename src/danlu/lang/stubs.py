"""Signatures and docstrings of the functions as text: for ``help()``, stubs and the reference."""

from __future__ import annotations

from itertools import groupby
from textwrap import indent, wrap

from danlu.lang.function import REQUIRED, Function, Parameter
from danlu.lang.table import NAMESPACES, PATHS, TABLE

__all__ = ["docstring", "editor_stub", "package_stub", "signature", "status"]

_TYPES = "from collections.abc import Mapping, Sequence\nfrom typing import Any, Final, Literal\n"


def signature(function: Function, *, types: bool = True) -> str:
    """Return ``name(parameters) -> returns``, short name, on one line."""
    parts: list[str] = []
    for parameter in function.parameters:
        if parameter.keyword_only and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter, types=types))
    text = f"{function.short_name}({', '.join(parts)})"
    return f"{text} -> {function.returns}" if types else text


def _parameter(parameter: Parameter, *, types: bool) -> str:
    annotation = parameter.kind.annotation
    if not types:
        return (
            parameter.name
            if parameter.default is REQUIRED
            else f"{parameter.name}={_default(parameter)}"
        )
    if parameter.default is REQUIRED:
        return f"{parameter.name}: {annotation}"
    # As everywhere in the language, None is "not given".
    return f"{parameter.name}: {annotation} | None = {_default(parameter)}"


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def status(function: Function) -> str:
    """Return what this version does with a call of the function."""
    if function.built:
        return "built"
    return "at start" if function.at_start else "planned"


_STATUS_WORDS = {
    "built": "",
    "at start": "Acts when the environment starts; nothing in the image.",
    "planned": "Checked and shown by `danlu plan`; this version does not build it.",
}


def docstring(function: Function) -> str:
    """Return what the function does, its arguments, and an example."""
    blocks = ["\n".join(wrap(function.doc, 88))]
    words = _STATUS_WORDS[status(function)]
    if words:
        blocks.append(words)
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


def _definition(function: Function, *, method: bool) -> str:
    line = f"def {signature(function)}:"
    if len(line) > 92:
        open_paren = line.index("(")
        close = line.rindex(") -> ")
        inner = signature(function)[open_paren - 4 + 1 : close - 4]
        parts = _split(inner)
        line = line[: open_paren + 1] + "\n    " + ",\n    ".join(parts) + ",\n" + line[close:]
    body = docstring(function)
    quoted = f'"""{body}"""' if "\n" not in body else f'"""{body}\n"""'
    text = f"{line}\n{indent(quoted, '    ')}\n"
    return f"@staticmethod\n{text}" if method else text


def _split(parameters: str) -> list[str]:
    parts, depth = [""], 0
    for character in parameters:
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _language() -> str:
    blocks = [
        _definition(function, method=False) for function in TABLE.values() if not function.namespace
    ]
    for namespace in NAMESPACES:
        name = f"_{namespace.capitalize()}"
        methods = [
            indent(_definition(function, method=True), "    ")
            for function in TABLE.values()
            if function.namespace == namespace
        ]
        if namespace == "data":
            fields = "".join(f"    {key}: Final[str]\n" for key in PATHS)
            blocks.append(f"class _DataPath:\n{fields}")
            methods.insert(0, "    path: Final[_DataPath]\n")
        blocks.append(f"class {name}:\n" + "\n".join(methods))
        blocks.append(f"{namespace}: Final[{name}]\n")
    return "\n".join(blocks)


#: What the package has beside the language, and out of which module.
_OTHERS = {
    "attach": "danlu.api",
    "sweep": "danlu.api",
    "train": "danlu.api",
    "report": "danlu.guest.report",
}

_HEAD = "# Made by `python -m danlu.lang.reference` from danlu.lang.table; do not edit.\n"


def package_stub() -> str:
    """Return the text of ``danlu/__init__.pyi``."""
    plain = [name for name in TABLE if "." not in name]
    names = "".join(f'    "{name}",\n' for name in sorted([*plain, *NAMESPACES, *_OTHERS]))
    others = "".join(
        f"from {module} import {', '.join(names)}\n"
        for module, names in groupby(_OTHERS, _OTHERS.__getitem__)
    )
    head = f"{_HEAD}{_TYPES}\n{others}\n__version__: str\n"
    return f"{head}__all__ = [\n{names}]\n\n{_language()}"


def editor_stub() -> str:
    """Return the text of a ``__builtins__.pyi``, which editors read for a ``build.envd``."""
    return f"{_HEAD}{_TYPES}\n{_language()}"
