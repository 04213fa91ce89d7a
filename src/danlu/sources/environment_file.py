"""Read conda's ``environment.yml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from danlu.errors import UsageError
from danlu.util.yaml_with_lines import read_yaml

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


class _FileSchema(msgspec.Struct):
    channels: tuple[str, ...] = ()
    dependencies: tuple[str | dict[Literal["pip"], tuple[str, ...] | str | None], ...] | None = None
    variables: dict[str, str] = {}


def parse_environment_file(text: str, name: str) -> CondaEnvironmentFile:
    """Parse the text of a file that is ``name`` in messages, by the rules of conda.

    Raises :class:`UsageError`, with the line, for what conda refuses and for what is not supported.
    """
    documents = [source for _, source in read_yaml(text, name, text_only=True)]
    if len(documents) != 1:
        raise UsageError(f"{name} is not a conda environment file: {len(documents)} documents")
    (source,) = documents
    try:
        file = msgspec.convert(_to_value(source.root), _FileSchema)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        raise UsageError(
            f"{name} is not a conda environment file: {problem} at {path or '`$`'}",
            span=source.span(path.partition("$.")[2].strip("`")),
            hint="`conda env export` writes one: lists of strings, and `pip:` in `dependencies`",
        ) from error
    for number, channel in enumerate(file.channels):
        if "$" in channel:
            raise UsageError(
                f"{name}: channel {channel} has a variable",
                span=source.span(f"channels[{number}]"),
                hint="write its address, or define the channel in .condarc",
            )
    specs: list[tuple[int, str]] = []
    pip: list[tuple[int, str]] = []
    for number, item in enumerate(file.dependencies or ()):
        place = f"dependencies[{number}]"
        if isinstance(item, str):
            specs.append((source.span(place).line, item.strip()))
            continue
        # As in conda, the last of several lists counts, and a string is a list of one.
        lines = item.get("pip") or ()
        pip = [
            # conda's documentation writes `-r file:requirements.txt`.
            (source.span(f"{place}.pip[{at}]").line, _FILE_URL.sub(r"\1", line.strip(), count=1))
            for at, line in enumerate((lines,) if isinstance(lines, str) else lines)
        ]
    return CondaEnvironmentFile(file.channels, tuple(specs), tuple(pip), file.variables)


def _to_value(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_to_value(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {key.value: _to_value(value) for key, value in node.value}
    assert isinstance(node, yaml.ScalarNode)
    if not node.style and _NULL.fullmatch(node.value):
        return None
    if not node.style and _NOT_TEXT.fullmatch(node.value):
        return True if node.value[0] in "tTfF" else 0.0  # for the message: neither is accepted
    return node.value
