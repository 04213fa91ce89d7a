"""From what a cell says, key by key, to its order; all that is wrong of it is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from danlu.errors import Span, UsageError
from danlu.notebook import keys, readers
from danlu.notebook.types import CellOrder, Role

__all__ = ["CELL", "Said", "order_of"]

#: What stands where an error names a file.
CELL = "cell"

#: Of a sweep, and of nothing else.
_OF_SWEEP = ("metric", "goal", "pattern", "parallel", "trials")

#: Fields that cannot both be said.
_EXCLUDING = (("env", "image"), ("detach", "sweep"))

_SHARE = re.compile(r"[ \t]*%?(?P<word>[\w-]+)[ \t]*=[ \t]*(?P<value>.*?)[ \t]*", re.DOTALL)


class Said(msgspec.Struct, frozen=True):
    """A key and its value as they were written; ``text`` is the whole line."""

    word: str
    value: str
    line: int
    text: str = ""


class _Wrong(msgspec.Struct, frozen=True):
    message: str
    hint: str
    said: Said


def order_of(said: Sequence[Said], *, mark: str) -> CellOrder:
    """The order that was said; ``mark`` (``%`` or ``--``) stands before keys in messages.

    Raises :class:`UsageError` for the first thing that is wrong, with the others as its details.
    """
    reading = _Reading(mark)
    for one in said:
        reading.take(one)
    reading.judge()
    if reading.wrong:
        raise _error(reading.wrong)
    return CellOrder(**reading.fields)


def _error(wrong: Sequence[_Wrong]) -> UsageError:
    first, *others = sorted(wrong, key=lambda one: one.said.line)
    return UsageError(
        _told(first),
        hint=first.hint,
        span=Span(CELL, first.said.line, 1),
        source_line=first.said.text,
        details=tuple(_told(one) + (f" ({one.hint})" if one.hint else "") for one in others),
    )


def _told(one: _Wrong) -> str:
    return f"line {one.said.line}: {one.message}"


class _Reading:
    """The fields of an order as they are said one after another, and what is wrong with them."""

    def __init__(self, mark: str) -> None:
        self.fields: dict[str, Any] = {}
        self.wrong: list[_Wrong] = []
        self._mark = mark
        self._where: dict[str, Said] = {}

    def take(self, said: Said) -> None:
        """Read one key and its value."""
        key = keys.find(said.word)
        try:
            if key is not None:
                self._add(_valued(key, said.value), said)
            elif keys.is_role(said.word):
                self._add({"roles": {keys.plain(said.word): self._role(said)}}, said)
            else:
                self._blame(
                    said, f"{self._shown(said.word)} is no {self._noun}", self._instead(said.word)
                )
        except UsageError as error:
            self._blame(said, f"{self._shown(said.word)}: {error.message}", error.hint)

    def judge(self) -> None:
        """Find what does not go together."""
        for word in _OF_SWEEP:
            if word in self.fields and "sweep" not in self.fields:
                said = self._where[word]
                hint = f"say what to sweep: {self._mark}sweep{self._equals}lr=0.1,0.01"
                self._blame(said, f"{self._shown(said.word)} is of a sweep", hint)
        if "sweep" in self.fields:
            self._judge_sweep()
        for one, other in _EXCLUDING:
            if self.fields.get(one) and self.fields.get(other):
                self._blame_pair(self._where[one], self._where[other])
        if self.fields.get("every") and "returns" not in self.fields:
            hint = f"name what comes back: {self._mark}return{self._equals}losses"
            self._blame(self._where["every"], "every replica returns nothing", hint)
        for said, message, hint in self._foreign_roles():
            self._blame(said, message, hint)

    def _judge_sweep(self) -> None:
        from danlu.commands.sweepspace import grid, parse_axes

        try:
            axes = parse_axes(self.fields["sweep"])
            if "trials" not in self.fields:
                grid(axes)
        except UsageError as error:
            self._blame(self._where["sweep"], error.message, error.hint)

    @property
    def _equals(self) -> str:
        return "=" if self._mark == "%" else " "

    @property
    def _noun(self) -> str:
        return "key" if self._mark == "%" else "option"

    def _shown(self, word: str) -> str:
        return f"{self._mark}{word}"

    def _blame(self, said: Said, message: str, hint: str = "") -> None:
        self.wrong.append(_Wrong(message, hint, said))

    def _blame_pair(self, one: Said, other: Said) -> None:
        first, last = sorted((one, other), key=lambda said: said.line)
        message = f"{self._shown(first.word)} and {self._shown(last.word)} exclude each other"
        self._blame(last, message, "give one of them")

    def _instead(self, word: str) -> str:
        near = keys.near(word)
        listed = f"`%%distributed --help` lists all {self._noun}s"
        return f"did you mean {self._shown(near)}?" if near else listed

    def _add(self, fields: Mapping[str, Any], said: Said) -> None:
        """Add what a key stands for; what is said twice has to be a list or a mapping."""
        for name, value in fields.items():
            if isinstance(value, tuple):
                self.fields[name] = tuple(dict.fromkeys((*self.fields.get(name, ()), *value)))
                self._where.setdefault(name, said)
            elif isinstance(value, Mapping):
                for inner in value:
                    self._once(f"{name} {inner}", said)
                self.fields[name] = {**self.fields.get(name, {}), **value}
            else:
                self._once(name, said)
                self.fields[name] = value

    def _once(self, name: str, said: Said) -> None:
        before = self._where.setdefault(name, said)
        if before is not said:
            where = f"on line {before.line} " if before.line != said.line else ""
            variable = name.partition(" ")[2] if name.startswith("variables ") else ""
            what = f"the variable {variable}" if variable else self._shown(said.word)
            self._blame(said, f"{what} was said {where}already", "say it once")

    def _role(self, said: Said) -> Role:
        """``2``, and after it ``;cpu=500m;memory=1Gi;gpu=1`` as far as they are wanted."""
        number, *shares = said.value.split(";")
        given: dict[str, Any] = {}
        for text in filter(str.strip, shares):
            found = _SHARE.fullmatch(text)
            key = keys.find(found["word"]) if found else None
            if found is None or key is None or key.name not in keys.SHARES:
                raise UsageError(
                    f"{text.strip()!r} does not belong to a replica type",
                    hint=f"after {said.word} and a number: ;%cpu=1;%memory=2Gi;%gpu=1",
                )
            if key.name in given:
                raise UsageError(f"{key.name} was said already", hint="say it once")
            given |= key.read(found["value"])
        return Role(readers.whole()(number.strip()), **given)

    def _foreign_roles(self) -> Iterator[tuple[Said, str, str]]:
        """The replica types that the framework does not have."""
        if "framework" not in self.fields:
            return
        from danlu.training.registry import framework_of

        framework = framework_of(self.fields["framework"])
        own = {keys.plain(one) for one in framework.types}
        listed = ", ".join(self._shown(keys.spelled(one)) for one in framework.types)
        for role in self.fields.get("roles", {}):
            if role not in own:
                said = self._where[f"roles {role}"]
                yield (
                    said,
                    f"{framework.name} has no replicas of type {said.word}",
                    f"it has {listed}",
                )


def _valued(key: keys.Key, value: str) -> Mapping[str, Any]:
    if not value:
        raise UsageError("it has no value", hint=f"one like {key.examples[0]}")
    return key.read(value)
