"""YAML as Kubernetes reads and writes it: plain values, with the line of every field.

YAML is that of ``kubectl`` (1.1 without its dates and base-60 numbers); what JSON cannot say, a
key given twice, and texts that explode when their aliases are followed are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import yaml

from danlu.errors import Span, UsageError

try:
    from yaml import CSafeDumper as _Dumper
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without its C half: slower, else the same
    from yaml import SafeDumper as _Dumper  # type: ignore[assignment]
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

__all__ = ["Places", "YamlError", "dump_yaml", "read_yaml"]

_DEEPEST = 100
_LARGEST = 200_000
_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null")}
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")

_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
# Text that another reader of YAML takes for a truth or a number though PyYAML does not.
_AMBIGUOUS = re.compile(r"[yYnN]|[-+]?[0-9.]+[eE][-+]?[0-9]+|0o[0-7]+|[-+]?[0-9][0-9_]*(:[0-9_]+)+")


class YamlError(UsageError):
    """A text that is no YAML a manifest could be written in, with its place."""


class _Reader(_Loader):
    """The safe loader without dates, base-60 numbers and the value ``=``."""


class _Writer(_Dumper):
    """The safe dumper; it quotes what other readers would misread."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    replaced = {_TAG + name for name in ("int", "float", "timestamp", "value")}
    return {
        letter: [entry for entry in entries if entry[0] not in replaced]
        for letter, entries in _Loader.yaml_implicit_resolvers.items()
    }


def _write_text(dumper: Any, text: str) -> Any:
    if "\n" in text.strip("\n"):
        return dumper.represent_scalar(_TAG + "str", text, style="|")
    style = '"' if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Reader.yaml_implicit_resolvers = _resolvers()
_Reader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_Reader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))
_Writer.add_representer(str, _write_text)


@dataclass(frozen=True, eq=False)
class _Text:
    """A file's text and its name."""

    file: str
    text: str

    def line(self, number: int) -> str:
        """The text of a line, counted from 1; empty where there is none."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def error(self, message: str, *, mark: Any, hint: str = "") -> YamlError:
        """An error at ``mark``."""
        span = Span(self.file, mark.line + 1, mark.column + 1)
        line = self.line(span.line)
        return YamlError(f"{self.file} {message}", hint=hint, span=span, source_line=line)

    @cached_property
    def _lines(self) -> list[str]:
        return _BREAK.split(self.text)


@dataclass(frozen=True, eq=False)
class Places:
    """Where the fields of one document stand in a file."""

    source: _Text
    root: yaml.Node

    def span(self, path: str) -> Span:
        """The place of a field, or of the nearest one around it that is there.

        ``path`` is as findings write it: ``spec.tfReplicaSpecs[Worker].replicas``. Keys are found
        in any letter case where none fits exactly.
        """
        _, mark = self._find(path)
        return Span(self.source.file, mark.line + 1, mark.column + 1)

    def below(self, path: str) -> Places:
        """The places of the document that ``path`` holds."""
        return Places(self.source, self._find(path)[0])

    def line(self, number: int) -> str:
        """The text of a line, counted from 1; empty where there is none."""
        return self.source.line(number)

    def _find(self, path: str) -> tuple[yaml.Node, Any]:
        node, mark = self.root, self.root.start_mark
        for step in _STEP.finditer(path):
            found = _child(node, step[1] if step[1] is not None else step[2])
            if found is None:
                break
            node, mark = found
        return node, mark


def read_yaml(text: str, file: str) -> Iterator[tuple[Any, Places]]:
    """Every document of ``text`` that is not empty: its value, and the places of its fields.

    Raises :class:`YamlError` with the place of what is wrong.
    """
    source = _Text(file, text)
    try:
        _check_depth(source)
        loader = _Reader(text)
        while loader.check_node():
            root = loader.get_node()
            assert root is not None  # check_node said so
            _check_weight(root, source)
            value = loader.construct_document(root)
            if value is not None:
                yield value, Places(source, root)
    except yaml.MarkedYAMLError as error:
        raise _explained(error, source) from error
    except (yaml.YAMLError, ValueError) as error:  # a character YAML does not allow, an odd number
        raise YamlError(f"{file} is not YAML: {_first_line(error)}") from error


def dump_yaml(document: Mapping[str, Any]) -> str:
    """A document as YAML that every reader of Kubernetes manifests reads the same."""
    plain = msgspec.to_builtins(document)
    return yaml.dump(
        plain, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100, indent=2
    )


# -- what no manifest may hold --------------------------------------------------------------------


def _check_depth(source: _Text) -> None:
    """Refuse what is nested so deep that composing it would end the process (libyaml's stack)."""
    depth = 0
    for event in yaml.parse(source.text, Loader=_Reader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                message = f"is no manifest: nested more than {_DEEPEST} deep"
                raise source.error(message, mark=event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_weight(root: yaml.Node, source: _Text) -> None:
    if _weigh(root, weights={}, above=set(), source=source) > _LARGEST:
        message = f"is no manifest: more than {_LARGEST:,} values once its aliases are followed"
        raise source.error(message, mark=root.start_mark)


def _weigh(node: yaml.Node, *, weights: dict[int, int], above: set[int], source: _Text) -> int:
    """How many values a node stands for, its aliases followed, each node looked at once."""
    if id(node) in above:
        raise source.error("is no manifest: an alias contains itself", mark=node.start_mark)
    if id(node) not in weights:
        _check_tag(node, source)
        above.add(id(node))
        children = _children(node, source)
        weights[id(node)] = 1 + sum(
            _weigh(child, weights=weights, above=above, source=source) for child in children
        )
        above.discard(id(node))
    return weights[id(node)]


def _check_tag(node: yaml.Node, source: _Text) -> None:
    if node.tag not in _PLAIN:
        message = f"is no manifest: it has no values of type '{node.tag.removeprefix(_TAG)}'"
        raise source.error(message, mark=node.start_mark)


def _children(node: yaml.Node, source: _Text) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node, source)
        yield from (value for _, value in node.value)


def _check_keys(node: yaml.MappingNode, source: _Text) -> None:
    """Keys are text whatever they look like, and each is there once."""
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _TAG + "merge":
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise source.error("is no manifest: a key is not a word", mark=key.start_mark)
        if key.value in seen:
            message = f"has '{key.value}' twice, first in line {seen[key.value]}"
            raise source.error(message, mark=key.start_mark)
        seen[key.value] = key.start_mark.line + 1
        key.tag = _TAG + "str"


# -- places and words -----------------------------------------------------------------------------


def _child(node: yaml.Node, step: str) -> tuple[yaml.Node, Any] | None:
    """The node below ``node`` and the place to show for it; None where there is none."""
    if isinstance(node, yaml.SequenceNode):
        if not step.isdecimal() or int(step) >= len(node.value):
            return None
        return node.value[int(step)], node.value[int(step)].start_mark
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        folded = [key.casefold() for key in keys]
        where = keys if step in keys else folded
        name = step if step in keys else step.casefold()
        if name in where:
            key, value = node.value[where.index(name)]
            return value, key.start_mark
    return None


def _explained(error: yaml.MarkedYAMLError, source: _Text) -> YamlError:
    mark = error.problem_mark or error.context_mark
    message = f"is not YAML: {error.problem or _first_line(error)}"
    if mark is None:
        return YamlError(f"{source.file} {message}")
    tabs = "\t" in source.line(mark.line + 1)
    return source.error(message, mark=mark, hint="indent with spaces: YAML has no tabs" * tabs)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
