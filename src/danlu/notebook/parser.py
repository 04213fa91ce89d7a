"""Parse job cells: ciao's ``%key=value`` lines, and the options of ``%%distributed``.

A directive is a line ``%key=`` among the first lines of a cell, before its code: only blank lines,
comments and magics may stand between them, and the cell does not start with ``%%``. IPython has no
magic of this form and Python no such statement, so an ordinary cell is never taken for a job.

A cell with at least one directive is a job. Two exceptions avoid clashes with magics: with blanks
before ``=`` the directive must be ``framework`` or a replica type, and ``%env=A=1`` alone is more
likely a typo of IPython's ``%env A=1`` than a job.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Container, Iterator, Sequence

import msgspec

from danlu.errors import Span, UsageError
from danlu.notebook import options
from danlu.notebook.options_parser import CELL_FILE_NAME, Directive, parse_options
from danlu.notebook.types import Cell
from danlu.submission.option_values import is_boolean
from danlu.submission.options import normalize_option_name

#: A cheap test that every job cell passes.
_CANDIDATE = re.compile(r"(?:\A|[\r\n])[ \t\f]*%[\w \t-]+=")

_DIRECTIVE = re.compile(
    r"""
    (?P<indent> [ \t\f]* ) %
    (?P<ciao> kubeflow [ \t]+ )?      # ciao's first syntax: %kubeflow worker=1
    (?P<word> [^\W\d] [\w-]* )
    (?P<blank> [ \t]* ) = (?!=)
    (?P<value> .* )
    """,
    re.VERBOSE | re.DOTALL,
)
_BARE_DIRECTIVE = re.compile(r"%(?P<word>[^\W\d][\w-]*)(?:[ \t]+(?P<value>.*))?", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t]*;[ \t]*(?=%[\w-]+[ \t]*=)")
_TRAILING_SEPARATORS = re.compile(r"[ \t]*(;[ \t]*)*\Z")
_LINE = re.compile(r"(?P<text>[^\r\n]*)(?P<end>\r\n|\r|\n|\Z)")
#: What may precede the code of a cell: blank lines, comments and IPython syntax.
_LEADING = re.compile(r"[ \t\f]*(?:[#%!?].*)?", re.DOTALL)
_CELL_MAGIC = re.compile(r"[ \t\f]*%%")

#: Options that share their name with a magic of IPython.
_IPYTHON_MAGICS = frozenset({"env"})


class CellLine(msgspec.Struct, frozen=True):
    """A line of a cell: its number (from 1), its text and its line ending, if any.

    ``is_leading`` is True before the first line of code.
    """

    number: int
    text: str
    end: str
    is_leading: bool


class _DirectiveLine(msgspec.Struct, frozen=True):
    """A line that has the form of a directive; ``is_tight`` if no blank precedes its ``=``."""

    line: CellLine
    word: str
    is_indented: bool
    is_tight: bool

    @property
    def is_known(self) -> bool:
        return options.find_option(self.word) is not None or options.is_replica_type(self.word)

    @property
    def marks_job(self) -> bool:
        name = normalize_option_name(self.word)
        if name == "framework" or options.is_replica_type(self.word):
            return True
        return self.is_tight and self.is_known and name not in _IPYTHON_MAGICS


def parse_cell(text: str) -> Cell | None:
    """Parse a cell with directives; return None for an ordinary cell.

    Raises :class:`UsageError` for invalid directives, and for a misspelled option in an otherwise
    ordinary cell.
    """
    if not _CANDIDATE.search(text):
        return None
    lines = split_lines(text)
    directive_lines = list(_find_directive_lines(lines))
    if not any(line.marks_job for line in directive_lines):
        _reject_misspellings(directive_lines)
        _reject_directive_after_code(text, lines)
        return None
    _reject_invalid_position(directive_lines)
    directives = [directive for line in lines for directive in _parse_directives(line)]
    parsed = parse_options(directives, prefix="%")
    numbers = {directive.line for directive in directives}
    return Cell(parsed, "".join(_blank_lines(lines, numbers)))


def split_lines(source: str) -> tuple[CellLine, ...]:
    """Split ``source`` into lines as Python counts them, without losing a character."""
    lines, is_leading = [], True
    for number, match in enumerate(_LINE.finditer(source), 1):
        if not match[0]:
            break
        text = match["text"]
        is_leading = is_leading and _LEADING.fullmatch(text) is not None
        lines.append(CellLine(number, text, match["end"], is_leading))
        # The next line continues this one.
        is_leading = is_leading and not text.endswith("\\")
    return tuple(lines)


def _blank_lines(lines: Sequence[CellLine], numbers: Container[int]) -> Iterator[str]:
    """Yield the text with some lines blanked, keeping the number of lines."""
    previous = ""
    for line in lines:
        is_blanked = line.number in numbers
        # A lone CR followed by a blanked line's LF would merge into one line ending.
        end = "\r\n" if is_blanked and previous == "\r" and line.end == "\n" else line.end
        yield end if is_blanked else line.text + end
        previous = end


def _find_directive_lines(lines: Sequence[CellLine]) -> Iterator[_DirectiveLine]:
    for line in lines:
        if not line.is_leading or _CELL_MAGIC.match(line.text):
            return
        if match := _DIRECTIVE.fullmatch(line.text):
            is_tight = not match["blank"] or bool(match["ciao"])
            yield _DirectiveLine(line, match["word"], bool(match["indent"]), is_tight)


def _reject_misspellings(directives: Sequence[_DirectiveLine]) -> None:
    for directive in directives:
        is_unknown = directive.is_tight and not directive.is_known
        near = options.suggest_option(directive.word) if is_unknown else ""
        if near:
            raise _line_error(
                directive.line, f"unknown option %{directive.word}", hint=f"did you mean %{near}?"
            )


def _reject_directive_after_code(text: str, lines: Sequence[CellLine]) -> None:
    """Raise :class:`UsageError` if the first line that is not Python has the form of a directive.

    Inside a string or brackets such a line is Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        line = lines[min(error.lineno or 1, len(lines)) - 1]
        match = _DIRECTIVE.fullmatch(line.text)
        if line.is_leading or match is None:
            return
        found = _DirectiveLine(line, match["word"], bool(match["indent"]), not match["blank"])
        if found.marks_job and not _CELL_MAGIC.match(lines[0].text):
            hint = "move it to the first lines of the cell"
            raise _line_error(line, f"%{found.word} comes after code", hint=hint) from None
    except (RecursionError, MemoryError, ValueError):
        return


def _reject_invalid_position(directives: Sequence[_DirectiveLine]) -> None:
    for directive in directives:
        name = f"%{directive.word}"
        if directive.is_indented:
            hint = "start the line with the option"
            raise _line_error(directive.line, f"{name} is indented", hint=hint)
        if directive.line.text.endswith("\\"):
            hint = "an option must fit on one line"
            raise _line_error(directive.line, f"{name} ends with a backslash", hint=hint)


def _line_error(line: CellLine, message: str, *, hint: str) -> UsageError:
    return UsageError(
        f"line {line.number}: {message}",
        hint=hint,
        span=Span(CELL_FILE_NAME, line.number, 1),
        source_line=line.text,
    )


def _parse_directives(line: CellLine) -> list[Directive]:
    """Return the directives of a line; none for code and for magics of IPython."""
    if not line.is_leading:
        return []
    if _DIRECTIVE.fullmatch(line.text):
        return _split_directives(line)
    bare = _BARE_DIRECTIVE.fullmatch(line.text)
    if bare is None or normalize_option_name(bare["word"]) in _IPYTHON_MAGICS:
        return []
    word, value = bare["word"], bare["value"]
    option = options.find_option(word)
    if option is None and not options.is_replica_type(word):
        return []
    if option is not None and not option.metavar and not value:
        return [Directive(word, "true", line.number, line.text)]
    example = (value or (option.examples[0] if option else "2")).strip()
    raise _line_error(line, f"missing = after %{word}", hint=f"write %{word}={example}")


def _split_directives(line: CellLine) -> list[Directive]:
    """Split a line at ``;``. A resource belongs to the replica type before it on the line."""
    directives: list[Directive] = []
    for text in _SEPARATOR.split(_TRAILING_SEPARATORS.sub("", line.text)):
        match = _DIRECTIVE.fullmatch(text)
        assert match is not None
        directive = Directive(match["word"], match["value"].strip(" \t"), line.number, line.text)
        owner = max(
            (i for i, other in enumerate(directives) if options.is_replica_type(other.word)),
            default=-1,
        )
        if options.is_resource_option(directive.word) and owner >= 0:
            value = f"{directives[owner].value};{directive.word}={directive.value}"
            directives[owner] = msgspec.structs.replace(directives[owner], value=value)
            continue
        if options.is_replica_type(directive.word) and owner < 0:
            resource = next((d for d in directives if options.is_resource_option(d.word)), None)
            if resource is not None:
                raise _line_error(
                    line,
                    f"%{resource.word} must follow %{directive.word}",
                    hint=f"write %{directive.word}={directive.value};%{resource.word}=…",
                )
        directives.append(directive)
    return directives


# -- %%distributed --------------------------------------------------------------------------------


def is_help_request(line: str) -> bool:
    """Return whether the options of ``%%distributed`` ask for help, so that nothing runs."""
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return "-h" in words or "--help" in words


def parse_distributed(line: str, body: str) -> Cell:
    """Parse ``%%distributed LINE`` with the lines ``body`` below it.

    Options are ``--key value`` or ``--key=value``, quoted as in a shell. Resources of a replica
    type follow its count: ``--worker "4;cpu=1;memory=2Gi"``. Raises :class:`UsageError`.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _options_error(line, str(error), hint="close the quotes") from None
    directives = [
        msgspec.structs.replace(directive, text=line) for directive in _parse_words(line, words)
    ]
    return Cell(parse_options(directives, prefix="--"), "\n" + body)


def _parse_words(line: str, words: Sequence[str]) -> Iterator[Directive]:
    remaining = list(words)
    while remaining:
        word, equals, value = remaining.pop(0).partition("=")
        word = _option_name(line, word)
        option = options.find_option(word)
        if equals:
            yield Directive(word, value, 1)
        elif option is not None and not option.metavar:
            # Flags take an optional value: `--every` or `--every true`.
            has_value = bool(remaining) and is_boolean(remaining[0])
            yield Directive(word, remaining.pop(0) if has_value else "true", 1)
        elif not remaining or remaining[0].startswith("--"):
            # Not an error yet: if the option is unknown, that is the better message.
            yield Directive(word, "", 1)
        else:
            yield Directive(word, remaining.pop(0), 1)


def _option_name(line: str, flag: str) -> str:
    """Return the name of the option behind ``--name`` or ``-n``."""
    if flag.startswith("--") and flag[2:3].isalpha():
        return flag[2:]
    for option in options.OPTIONS:
        if option.short and flag == f"-{option.short}":
            return option.name
    near = options.suggest_option(flag.lstrip("-%"))
    hint = f"did you mean --{near}?" if near else "options are --key value; --help lists them"
    raise _options_error(line, f"unknown option {flag!r}", hint=hint)


def _options_error(line: str, message: str, *, hint: str) -> UsageError:
    span = Span(CELL_FILE_NAME, 1, 1)
    return UsageError(f"line 1: {message}", hint=hint, span=span, source_line=line)
