"""Read YAML that people write for conda: ``environment.yml``, ``.condarc``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from danlu.errors import Span, UsageError


class CondaEnvironmentFile(msgspec.Struct, frozen=True):
    """The parts of an environment file that a build uses; name, prefix and variables are not.

    ``specs`` and ``pip`` (lines of a requirements file) have the numbers of their lines.
    """

    channels: tuple[str, ...] = ()
    specs: tuple[tuple[int, str], ...] = ()
    pip: tuple[tuple[int, str], ...] = ()


def parse_environment_file(text: str, name: str) -> CondaEnvironmentFile:
    """Parse the text of a file that is ``name`` in messages.

    Raises :class:`UsageError`, with the line, if it is not an environment file.
    """
    values = parse_yaml(text, name)
    if not isinstance(values, dict) or not isinstance(values.get("dependencies") or [], list):
        raise UsageError(
            f"{name} is not a conda environment file",
            span=Span(name, 1),
            hint="`conda env export` writes one: a mapping with a list of `dependencies`",
        )
    channels = values.get("channels") or []
    if not isinstance(channels, list) or not all(isinstance(item, str) for item in channels):
        raise UsageError(f"{name}: channels must be a list of strings", span=Span(name, 1))
    specs: list[tuple[int, str]] = []
    pip: list[tuple[int, str]] = []
    for key, number, item in _list_dependencies(yaml.compose(text, Loader=yaml.BaseLoader)):
        if not isinstance(item, yaml.ScalarNode):
            raise UsageError(
                f"{name}: unknown entry in dependencies",
                span=Span(name, number),
                hint="an entry is a package, or a mapping `pip:` with a list of requirements",
            )
        (pip if key == "pip" else specs).append((number, item.value.strip()))
    return CondaEnvironmentFile(tuple(channels), tuple(specs), tuple(pip))


def _list_dependencies(root: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield the entries of ``dependencies`` and of its ``pip`` list, with their line numbers."""
    top = root.value if isinstance(root, yaml.MappingNode) else ()
    listed = next((node for key, node in top if key.value == "dependencies"), None)
    for item in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        number = item.start_mark.line + 1
        pairs = list(item.value) if isinstance(item, yaml.MappingNode) else []
        if [key.value for key, _ in pairs] != ["pip"]:
            yield "", number, item
            continue
        lines = pairs[0][1]
        if isinstance(lines, yaml.SequenceNode):
            for line in lines.value:
                yield "pip", line.start_mark.line + 1, line
        elif lines.value:
            yield "", number, item


def parse_yaml(text: str, name: str, span: Span | None = None) -> Any:
    """Return the value of a YAML text with every scalar as text; ``3.10`` is not read as a number.

    Raises :class:`UsageError`, with the line of ``name`` unless ``span`` is given.
    """
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        if span is None and mark is not None:
            span = Span(name, mark.line + 1, mark.column + 1)
        raise UsageError(f"{name} is not valid YAML: {problem}", span=span) from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply", span=span) from error
