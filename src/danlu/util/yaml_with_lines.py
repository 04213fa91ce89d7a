"""Read and write YAML as Kubernetes does, remembering the line of every field.

The dialect is that of ``kubectl``, YAML 1.1 without dates and base-60 numbers, or plain text only.
Values that JSON cannot express, duplicate keys and alias bombs are errors.
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
except ImportError:  # PyYAML without its C extension: slower, otherwise the same
    from yaml import SafeDumper as _Dumper  # type: ignore[assignment]
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

_MAX_DEPTH = 100
_MAX_VALUES = 200_000
_TAG = "tag:yaml.org,2002:"
_JSON_TAGS = {_TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null")}
_PATH_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_LINE_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")

_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
# Strings that other YAML parsers read as booleans or numbers, though PyYAML does not.
_AMBIGUOUS = re.compile(r"[yYnN]|[-+]?[0-9.]+[eE][-+]?[0-9]+|0o[0-7]+|[-+]?[0-9][0-9_]*(:[0-9_]+)+")


class YamlError(UsageError):
    """Invalid YAML, or YAML that a manifest cannot contain, with its position."""


class _KubernetesLoader(_Loader):
    """The safe loader without dates, base-60 numbers and the value ``=``."""


class _TextLoader(_Loader):
    """The loader of a text for every scalar, also for ``3.10``."""


class _KubernetesDumper(_Dumper):
    """The safe dumper; it quotes strings that other parsers would misread."""


def _implicit_resolvers() -> dict[str, list[tuple[str, Any]]]:
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


_TextLoader.yaml_implicit_resolvers = {"<": _Loader.yaml_implicit_resolvers["<"]}
_KubernetesLoader.yaml_implicit_resolvers = _implicit_resolvers()
_KubernetesLoader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_KubernetesLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))
_KubernetesDumper.add_representer(str, _write_text)


@dataclass(frozen=True, eq=False)
class _SourceText:
    """The name and text of a file."""

    file: str
    text: str

    def line(self, number: int) -> str:
        """Return line ``number`` (from 1); empty if it does not exist."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def error(self, message: str, *, mark: Any, hint: str = "") -> YamlError:
        """Return an error at ``mark``."""
        span = Span(self.file, mark.line + 1, mark.column + 1)
        line = self.line(span.line)
        return YamlError(f"{self.file} {message}", hint=hint, span=span, source_line=line)

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)


@dataclass(frozen=True, eq=False)
class SourceMap:
    """The positions of the fields of one document."""

    source: _SourceText
    root: yaml.Node

    def span(self, path: str) -> Span:
        """Return the position of a field, or of its closest existing parent.

        ``path`` looks like ``spec.tfReplicaSpecs[Worker].replicas``. If no key matches exactly,
        case is ignored.
        """
        _, mark = self._find_node(path)
        return Span(self.source.file, mark.line + 1, mark.column + 1)

    def subtree(self, path: str) -> SourceMap:
        """Return the positions of the document at ``path``."""
        return SourceMap(self.source, self._find_node(path)[0])

    def line(self, number: int) -> str:
        """Return line ``number`` (from 1); empty if it does not exist."""
        return self.source.line(number)

    def _find_node(self, path: str) -> tuple[yaml.Node, Any]:
        node, mark = self.root, self.root.start_mark
        for step in _PATH_STEP.finditer(path):
            found = _child_node(node, step[1] if step[1] is not None else step[2])
            if found is None:
                break
            node, mark = found
        return node, mark


def read_yaml(text: str, file: str, *, text_only: bool = False) -> Iterator[tuple[Any, SourceMap]]:
    """Yield every document that is not empty: its value, and the positions of its fields.

    With ``text_only`` every scalar is a text. Raises :class:`YamlError` with the position of the
    error.
    """
    source = _SourceText(file, text)
    try:
        _check_depth(source)
        loader = (_TextLoader if text_only else _KubernetesLoader)(text)
        while loader.check_node():
            root = loader.get_node()
            assert root is not None  # because check_node() is true
            _check_alias_size(root, source)
            value = loader.construct_document(root)
            if value is not None:
                yield value, SourceMap(source, root)
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(error, source) from error
    except (yaml.YAMLError, ValueError) as error:  # a character YAML does not allow, an odd number
        raise YamlError(f"{file} is not valid YAML: {_first_line(error)}") from error


def dump_yaml(document: Mapping[str, Any]) -> str:
    """Return the document as YAML that every parser of Kubernetes manifests reads the same."""
    plain = msgspec.to_builtins(document)
    return yaml.dump(
        plain, Dumper=_KubernetesDumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )


# -- limits --------------------------------------------------------------------


def _check_depth(source: _SourceText) -> None:
    """Reject deep nesting: composing it would overflow the stack of libyaml."""
    depth = 0
    for event in yaml.parse(source.text, Loader=_KubernetesLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                message = f"is nested more than {_MAX_DEPTH} levels deep"
                raise source.error(message, mark=event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_alias_size(root: yaml.Node, source: _SourceText) -> None:
    if _expanded_size(root, weights={}, above=set(), source=source) > _MAX_VALUES:
        message = f"has more than {_MAX_VALUES:,} values after expanding its aliases"
        raise source.error(message, mark=root.start_mark)


def _expanded_size(
    node: yaml.Node, *, weights: dict[int, int], above: set[int], source: _SourceText
) -> int:
    """Return the number of values after expanding aliases; each node is visited once."""
    if id(node) in above:
        raise source.error("has an alias that contains itself", mark=node.start_mark)
    if id(node) not in weights:
        _check_tag(node, source)
        above.add(id(node))
        children = _child_nodes(node, source)
        weights[id(node)] = 1 + sum(
            _expanded_size(child, weights=weights, above=above, source=source) for child in children
        )
        above.discard(id(node))
    return weights[id(node)]


def _check_tag(node: yaml.Node, source: _SourceText) -> None:
    if node.tag not in _JSON_TAGS:
        message = f"has a value of unsupported type '{node.tag.removeprefix(_TAG)}'"
        raise source.error(message, mark=node.start_mark)


def _child_nodes(node: yaml.Node, source: _SourceText) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node, source)
        yield from (value for _, value in node.value)


def _check_keys(node: yaml.MappingNode, source: _SourceText) -> None:
    """Read all keys as strings, and reject duplicates."""
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _TAG + "merge":
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise source.error("has a key that is not a scalar", mark=key.start_mark)
        if key.value in seen:
            message = f"has a duplicate key '{key.value}', first on line {seen[key.value]}"
            raise source.error(message, mark=key.start_mark)
        seen[key.value] = key.start_mark.line + 1
        key.tag = _TAG + "str"


# -- positions and messages
# -----------------------------------------------------------------------------


def _child_node(node: yaml.Node, step: str) -> tuple[yaml.Node, Any] | None:
    """Return the child of a node and the position to report for it, or None."""
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


def _yaml_error(error: yaml.MarkedYAMLError, source: _SourceText) -> YamlError:
    mark = error.problem_mark or error.context_mark
    message = f"is not valid YAML: {error.problem or _first_line(error)}"
    if mark is None:
        return YamlError(f"{source.file} {message}")
    tabs = "\t" in source.line(mark.line + 1)
    hint = "indent with spaces: YAML does not allow tabs" if tabs else ""
    return source.error(message, mark=mark, hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
