"""Read YAML that people write for conda: ``environment.yml``, ``.condarc``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from danlu.errors import Span, UsageError

#: Plain scalars that are not text in YAML 1.2, as conda reads it. The usual form of a whole number
#: is the same text.
_NULL = re.compile(r"|~|null|Null|NULL")
_NOT_TEXT = re.compile(
    r"true|True|TRUE|false|False|FALSE|0o[0-7]+|0x[0-9a-fA-F]+|(?!-?(?:0|[1-9]\d*)$)"
    r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_FILE_URL = re.compile(r"^((?:-r|-c|--requirement|--constraint)[ =]*)file:(?!//)")


class CondaEnvironmentFile(msgspec.Struct, frozen=True):
    """The parts of an environment file that are used; name and prefix are not.

    ``specs`` and ``pip`` (lines of a requirements file) have the numbers of their lines.
    """

    channels: tuple[str, ...] = ()
    specs: tuple[tuple[int, str], ...] = ()
    pip: tuple[tuple[int, str], ...] = ()
    variables: Mapping[str, str] = {}


class _NumberedText(str):
    """A text with the number of its line."""

    number = 1


class _FileSchema(msgspec.Struct):
    channels: tuple[str, ...] = ()
    dependencies: tuple[str | dict[Literal["pip"], tuple[str, ...] | str | None], ...] | None = None
    variables: dict[str, str] = {}


def parse_environment_file(text: str, name: str) -> CondaEnvironmentFile:
    """Parse the text of a file that is ``name`` in messages, by the rules of conda.

    Raises :class:`UsageError`, with the line, for what conda refuses and for what is not supported.
    """
    root = _compose_yaml(text, name, None)
    try:
        file = msgspec.convert(_to_value(root), _FileSchema)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        raise UsageError(
            f"{name} is not a conda environment file: {problem} at {path or '`$`'}",
            span=Span(name, _find_line(root, path)),
            hint="`conda env export` writes one: lists of strings, and `pip:` in `dependencies`",
        ) from error
    for channel in file.channels:
        if "$" in channel:
            raise UsageError(
                f"{name}: channel {channel} has a variable",
                span=Span(name, _line_number(channel)),
                hint="write its address, or define the channel in .condarc",
            )
    specs: list[tuple[int, str]] = []
    pip: tuple[str, ...] = ()
    for item in file.dependencies or ():
        if isinstance(item, str):
            specs.append((_line_number(item), item.strip()))
        else:
            # As in conda, the last of several lists counts, and a string is a list of one.
            lines = item.get("pip")
            pip = (lines,) if isinstance(lines, str) else lines or ()
    # conda's documentation writes `-r file:requirements.txt`.
    numbered = tuple(
        (_line_number(line), _FILE_URL.sub(r"\1", line.strip(), count=1)) for line in pip
    )
    return CondaEnvironmentFile(file.channels, tuple(specs), numbered, file.variables)


def _line_number(line: str) -> int:
    return line.number if isinstance(line, _NumberedText) else 1


def _to_value(node: yaml.Node | None) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_to_value(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {key.value: _to_value(value) for key, value in node.value}
    if not isinstance(node, yaml.ScalarNode):
        return None
    if node.style is None and _NULL.fullmatch(node.value):
        return None
    if node.style is None and _NOT_TEXT.fullmatch(node.value):
        return True if node.value[0] in "tTfF" else 0.0  # for the message: neither is accepted
    line = _NumberedText(node.value)
    line.number = node.start_mark.line + 1
    return line


def _find_line(node: yaml.Node | None, path: str) -> int:
    """Return the line of the value at ``$.dependencies[2]``, or of the last one on its way."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == key or not key), node)
        elif isinstance(node, yaml.SequenceNode) and index.isdecimal():
            node = node.value[int(index)]
    return 1 if node is None else node.start_mark.line + 1


def parse_yaml(text: str, name: str, span: Span | None = None) -> Any:
    """Return the value of a YAML text with every scalar as text; ``3.10`` is not read as a number.

    Raises :class:`UsageError`, with the line of ``name`` unless ``span`` is given.
    """
    root = _compose_yaml(text, name, span)
    return None if root is None else yaml.BaseLoader("").construct_document(root)


def _compose_yaml(text: str, name: str, span: Span | None) -> yaml.Node | None:
    """Return the only document of a YAML text; duplicate keys and aliases are errors."""
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
        if root is not None:
            _check_node(root, set())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        if span is None and mark is not None:
            span = Span(name, mark.line + 1, mark.column + 1)
        raise UsageError(f"{name} is not valid YAML: {problem}", span=span) from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply", span=span) from error
    return root


def _check_node(node: yaml.Node, seen: set[yaml.Node]) -> None:
    problem = "aliases are not supported" if node in seen else ""
    seen.add(node)
    children = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
    if isinstance(node, yaml.MappingNode):
        keys = [key.value if isinstance(key, yaml.ScalarNode) else "" for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1 or key == "<<"]
        problem = problem or (f"duplicate or merged key {twice[0]!r}" if twice else "")
        children = [child for pair in node.value for child in pair]
    if problem:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    for child in children:
        _check_node(child, seen)
