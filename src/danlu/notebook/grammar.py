"""Which cells are jobs, and what they ask for: ciao's words, and the options of ``%%distributed``.

A line is a key where a logical line of code begins with ``%key=``: never inside of strings or
brackets, nor where the line before is continued, nor in a cell that begins with ``%%``. IPython has
no magic of that form, and Python no statement, so a cell that runs without danlu is never a job.
A cell is a job that has one key at least. With blanks before ``=``, where a magic might be meant
that somebody called so, it takes one that names a framework or a replica type; and ``%env=A=1``
alone is more likely a slip of IPython's ``%env A=1`` than a job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterator, Sequence

import msgspec

from danlu.errors import Span, UsageError
from danlu.notebook import keys
from danlu.notebook.lines import Line, lines_of
from danlu.notebook.said import CELL, Said, order_of
from danlu.notebook.types import Cell

__all__ = ["asks_help", "read_cell", "read_options"]

#: Cheap, and true of every cell that may be a job.
_MAYBE = re.compile(r"(?:\A|[\r\n])[ \t\f]*%[\w \t-]+=")

_KEY = re.compile(
    r"""
    (?P<indent> [ \t\f]* ) %
    (?P<ciao> kubeflow [ \t]+ )?      # as ciao had it at first: %kubeflow worker=1
    (?P<word> [^\W\d] [\w-]* )
    (?P<blank> [ \t]* ) = (?!=)
    (?P<value> .* )
    """,
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"%(?P<word>[^\W\d][\w-]*)(?:[ \t]+(?P<value>.*))?", re.DOTALL)
_NEXT = re.compile(r"[ \t]*;[ \t]*(?=%[\w-]+[ \t]*=)")
_LAST = re.compile(r"[ \t]*(;[ \t]*)*\Z")
_CELL_MAGIC = re.compile(r"[ \t\f]*%%")

#: IPython's own magics that are called as keys are.
_OF_IPYTHON = frozenset({"env"})


class _KeyLine(msgspec.Struct, frozen=True):
    """A line that has the form of a key."""

    line: Line
    word: str
    indented: bool
    tight: bool

    @property
    def known(self) -> bool:
        return keys.find(self.word) is not None or keys.is_role(self.word)

    @property
    def decides(self) -> bool:
        """Whether it makes its cell a job."""
        name = keys.plain(self.word)
        if name == "framework" or keys.is_role(self.word):
            return True
        return self.tight and self.known and name not in _OF_IPYTHON


def read_cell(text: str) -> Cell | None:
    """The job that a cell in ciao's words is; None for an ordinary cell.

    Raises :class:`UsageError`, which names the line, where a job's keys are wrong, and where a key
    is misspelt that no magic can be meant by.
    """
    if not _MAYBE.search(text):
        return None
    lines = lines_of(text)
    found = list(_key_lines(lines))
    if not any(one.decides for one in found):
        _refuse_misspelt(found)
        return None
    _refuse_misplaced(found)
    said = [one for line in lines for one in _said(line)]
    order = order_of(said, mark="%")
    empty = {one.line for one in said}
    return Cell(order, "".join(_without(lines, empty)))


def _without(lines: Sequence[Line], empty: Container[int]) -> Iterator[str]:
    """The text with some lines made empty, and as many lines as before."""
    before = ""
    for one in lines:
        gone = one.number in empty
        # Of a lone carriage return and what then follows it there would be one end of two lines.
        end = "\r\n" if gone and before == "\r" and one.end == "\n" else one.end
        yield end if gone else one.text + end
        before = end


def _key_lines(lines: Sequence[Line]) -> Iterator[_KeyLine]:
    """The lines that have the form of a key; none of a cell that belongs to a cell magic."""
    for line in lines:
        if not line.begins:
            continue
        if _CELL_MAGIC.match(line.text):
            return
        if found := _KEY.fullmatch(line.text):
            tight = not found["blank"] or bool(found["ciao"])
            yield _KeyLine(line, found["word"], bool(found["indent"]), tight)


def _refuse_misspelt(found: Sequence[_KeyLine]) -> None:
    for one in found:
        near = keys.near(one.word) if one.tight and not one.known else ""
        if near:
            message = f"line {one.line.number}: %{one.word} is no key"
            raise _at(one.line, message, hint=f"did you mean %{near}?")


def _refuse_misplaced(found: Sequence[_KeyLine]) -> None:
    for one in found:
        shown = f"line {one.line.number}: %{one.word}"
        if one.indented:
            raise _at(one.line, f"{shown} is indented", hint="keys stand where their line begins")
        if one.line.text.endswith("\\"):
            raise _at(one.line, f"{shown} ends with a backslash", hint="a key is one line")


def _at(line: Line, message: str, *, hint: str) -> UsageError:
    return UsageError(message, hint=hint, span=Span(CELL, line.number, 1), source_line=line.text)


def _said(line: Line) -> list[Said]:
    """What a line of a job says; nothing where it is code, or a magic of IPython."""
    if not line.begins:
        return []
    if _KEY.fullmatch(line.text):
        return _groups(line)
    bare = _BARE.fullmatch(line.text)
    if bare is None or keys.plain(bare["word"]) in _OF_IPYTHON:
        return []
    key = keys.find(bare["word"])
    if key is None and not keys.is_role(bare["word"]):
        return []
    if key is not None and not key.takes and not bare["value"]:
        return [Said(bare["word"], "true", line.number, line.text)]
    example = key.examples[0] if key else "2"
    message = f"line {line.number}: %{bare['word']} has no ="
    raise _at(line, message, hint=f"write %{bare['word']}={(bare['value'] or example).strip()}")


def _groups(line: Line) -> list[Said]:
    """The keys of one line; a share belongs to the replica type that stands before it."""
    said: list[Said] = []
    for text in _NEXT.split(_LAST.sub("", line.text)):
        found = _KEY.fullmatch(text)
        assert found is not None
        one = Said(found["word"], found["value"].strip(" \t"), line.number, line.text)
        place = max((at for at, other in enumerate(said) if keys.is_role(other.word)), default=-1)
        if keys.is_share(one.word) and place >= 0:
            value = f"{said[place].value};{one.word}={one.value}"
            said[place] = msgspec.structs.replace(said[place], value=value)
            continue
        if keys.is_role(one.word) and place < 0 and any(keys.is_share(two.word) for two in said):
            message = f"line {line.number}: %{said[0].word} stands before %{one.word}"
            raise _at(line, message, hint=f"write %{one.word}={one.value};%{said[0].word}=…")
        said.append(one)
    return said


# -- options --------------------------------------------------------------------------------------


def asks_help(line: str) -> bool:
    """Whether the options of ``%%distributed`` ask what they are: then nothing is to be run."""
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return "-h" in words or "--help" in words


def read_options(line: str, body: str) -> Cell:
    """The job of ``%%distributed LINE`` and the lines below it, which are ``body``.

    Options are ``--key value`` or ``--key=value``, quoted as for a shell; shares of a replica type
    follow its number: ``--worker "4;cpu=1;memory=2Gi"``. Raises :class:`UsageError` for line 1.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _in_options(line, f"{error}", hint="close the quotes") from None
    said = [msgspec.structs.replace(one, text=line) for one in _options(line, words)]
    return Cell(order_of(said, mark="--"), "\n" + body)


def _options(line: str, words: Sequence[str]) -> Iterator[Said]:
    waiting = list(words)
    while waiting:
        option = waiting.pop(0)
        word, equals, value = option.partition("=")
        word = _long(line, word)
        key = keys.find(word)
        if equals:
            yield Said(word, value, 1)
        elif key is not None and not key.takes:
            yield Said(word, "true", 1)
        elif not waiting or waiting[0].startswith("--"):
            # An unknown one may not even take a value: that it is unknown is what matters.
            yield Said(word, "", 1)
        else:
            yield Said(word, waiting.pop(0), 1)


def _long(line: str, option: str) -> str:
    """The name of an option, without its hyphens."""
    if option.startswith("--") and option[2:3].isalpha():
        return option[2:]
    for key in keys.KEYS:
        if key.short and option == f"-{key.short}":
            return key.name
    near = keys.near(option.lstrip("-%"))
    hint = f"did you mean --{near}?" if near else "options are --key value; --help lists them"
    raise _in_options(line, f"{option!r} is no option", hint=hint)


def _in_options(line: str, message: str, *, hint: str) -> UsageError:
    return UsageError(f"line 1: {message}", hint=hint, span=Span(CELL, 1, 1), source_line=line)
