"""Parse the directives of a cell into its options, and report all problems at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from danlu.errors import Span, UsageError
from danlu.notebook import options
from danlu.notebook.types import CellOptions, ReplicaOptions
from danlu.submission import option_values
from danlu.submission.options import SWEEP_FIELDS, format_option_name, normalize_option_name
from danlu.sweeps.space import build_grid, parse_axes
from danlu.training.registry import find_framework

#: The file name in errors about a cell.
CELL_FILE_NAME = "cell"

_MUTUALLY_EXCLUSIVE = (("env", "image"), ("detach", "sweep"))

_RESOURCE = re.compile(r"[ \t]*%?(?P<word>[\w-]+)[ \t]*=[ \t]*(?P<value>.*?)[ \t]*", re.DOTALL)


class Directive(msgspec.Struct, frozen=True):
    """An option and its value as written in a cell; ``text`` is the whole line."""

    word: str
    value: str
    line: int
    text: str = ""


class _Problem(msgspec.Struct, frozen=True):
    message: str
    hint: str
    directive: Directive

    def __str__(self) -> str:
        return f"line {self.directive.line}: {self.message}"


def parse_options(directives: Sequence[Directive], *, prefix: str) -> CellOptions:
    """Parse a cell's directives.

    ``prefix`` (``%`` or ``--``) precedes the names of options in messages. Raises
    :class:`UsageError` for the first problem, with all others as its details.
    """
    parser = _OptionsParser(prefix)
    for directive in directives:
        parser.add(directive)
    parser.validate()
    if parser.problems:
        raise _usage_error(parser.problems)
    return CellOptions(**parser.fields)


def _usage_error(problems: Sequence[_Problem]) -> UsageError:
    first, *others = sorted(problems, key=lambda problem: problem.directive.line)
    return UsageError(
        str(first),
        hint=first.hint,
        span=Span(CELL_FILE_NAME, first.directive.line, 1),
        source_line=first.directive.text,
        details=tuple(f"{other} ({other.hint})" if other.hint else str(other) for other in others),
    )


class _OptionsParser:
    """Collects the fields of :class:`CellOptions`, and the problems found on the way."""

    def __init__(self, prefix: str) -> None:
        self.fields: dict[str, Any] = {}
        self.problems: list[_Problem] = []
        self._prefix = prefix
        #: The directive that first set a field, or a key of a field that is a mapping.
        self._set_by: dict[str, Directive] = {}

    def add(self, directive: Directive) -> None:
        """Parse one directive."""
        option = options.find_option(directive.word)
        name = self._option_name(directive.word)
        try:
            if option is not None:
                if not directive.value:
                    raise UsageError("requires a value", hint=f"for example {option.examples[0]}")
                self._add_fields(option.read(directive.value), directive)
            elif options.is_replica_type(directive.word):
                replica_type = normalize_option_name(directive.word)
                parsed = _parse_replica_options(directive)
                self._add_fields({"replicas": {replica_type: parsed}}, directive)
            else:
                hint = self._suggestion_hint(directive.word)
                self._add_problem(directive, f"unknown option {name}", hint)
        except UsageError as error:
            self._add_problem(directive, f"{name}: {error.message}", error.hint)

    def validate(self) -> None:
        """Check the options against each other."""
        for field in SWEEP_FIELDS:
            if field in self.fields and "sweep" not in self.fields:
                directive = self._set_by[field]
                name = self._option_name(directive.word)
                message = f"{name} is only valid with {self._option_name('sweep')}"
                self._add_problem(
                    directive, message, f"add {self._example('sweep', 'lr=0.1,0.01')}"
                )
        if "sweep" in self.fields:
            self._validate_sweep()
        for field, other in _MUTUALLY_EXCLUSIVE:
            if self.fields.get(field) and self.fields.get(other):
                self._add_conflict(self._set_by[field], self._set_by[other])
        if self.fields.get("every") and "returns" not in self.fields:
            message = f"{self._option_name('every')} requires {self._option_name('return')}"
            hint = f"name the variables to return: {self._example('return', 'losses')}"
            self._add_problem(self._set_by["every"], message, hint)
        for directive, message, hint in self._find_unsupported_types():
            self._add_problem(directive, message, hint)

    def _validate_sweep(self) -> None:
        try:
            axes = parse_axes(self.fields["sweep"])
            if "trials" not in self.fields:
                build_grid(axes)
        except UsageError as error:
            self._add_problem(self._set_by["sweep"], error.message, error.hint)

    def _find_unsupported_types(self) -> Iterator[tuple[Directive, str, str]]:
        if "framework" not in self.fields:
            return
        framework = find_framework(self.fields["framework"])
        known = {normalize_option_name(name) for name in framework.replica_types}
        names = [self._option_name(format_option_name(name)) for name in framework.replica_types]
        for replica_type in self.fields.get("replicas", {}):
            if replica_type not in known:
                directive = self._set_by[f"replicas {replica_type}"]
                message = f"{framework.name} has no replica type {directive.word}"
                yield directive, message, f"it has {', '.join(names)}"

    def _add_fields(self, fields: Mapping[str, Any], directive: Directive) -> None:
        """Set fields. Tuples and mappings accumulate; anything else may be set only once."""
        for name, value in fields.items():
            if isinstance(value, tuple):
                self.fields[name] = tuple(dict.fromkeys((*self.fields.get(name, ()), *value)))
                self._set_by.setdefault(name, directive)
            elif isinstance(value, Mapping):
                for key in value:
                    self._reject_duplicate(f"{name} {key}", directive)
                self.fields[name] = {**self.fields.get(name, {}), **value}
            else:
                self._reject_duplicate(name, directive)
                self.fields[name] = value

    def _reject_duplicate(self, name: str, directive: Directive) -> None:
        before = self._set_by.setdefault(name, directive)
        if before is directive:
            return
        where = f" on line {before.line}" if before.line != directive.line else ""
        field, _, variable = name.partition(" ")
        subject = (
            f"variable {variable}" if field == "environment" else self._option_name(directive.word)
        )
        self._add_problem(directive, f"{subject} is already set{where}", "set it only once")

    def _add_problem(self, directive: Directive, message: str, hint: str = "") -> None:
        self.problems.append(_Problem(message, hint, directive))

    def _add_conflict(self, one: Directive, other: Directive) -> None:
        first, last = sorted((one, other), key=lambda directive: directive.line)
        names = f"{self._option_name(first.word)} and {self._option_name(last.word)}"
        self._add_problem(last, f"{names} are mutually exclusive", "use only one of them")

    def _suggestion_hint(self, word: str) -> str:
        near = options.suggest_option(word)
        if near:
            return f"did you mean {self._option_name(near)}?"
        return "`%%distributed --help` lists all options"

    def _option_name(self, word: str) -> str:
        return f"{self._prefix}{word}"

    def _example(self, word: str, value: str) -> str:
        separator = "=" if self._prefix == "%" else " "
        return f"{self._option_name(word)}{separator}{value}"


def _parse_replica_options(directive: Directive) -> ReplicaOptions:
    """Parse ``2`` or ``2;cpu=500m;memory=1Gi;gpu=1``."""
    count, *resources = directive.value.split(";")
    fields: dict[str, Any] = {}
    for text in filter(str.strip, resources):
        match = _RESOURCE.fullmatch(text)
        option = options.find_option(match["word"]) if match else None
        if match is None or option is None or option.name not in options.RESOURCE_OPTIONS:
            raise UsageError(
                f"invalid resource {text.strip()!r}",
                hint=f"after {directive.word} and a number write ;%cpu=1;%memory=2Gi;%gpu=1",
            )
        if option.name in fields:
            raise UsageError(f"{option.name} is already set", hint="set it only once")
        fields |= option.read(match["value"])
    return ReplicaOptions(option_values.whole_number()(count.strip()), **fields)
