"""Split a cell into lines and find those that start a logical line of code.

Python's own tokenizer cannot be used: it fails on IPython syntax (``!pip``, ``%matplotlib``), and
in Python 3.11 it does not support nested quotes in f-strings. This tokenizer only distinguishes
strings, brackets and continuation lines from other code, by the rules of the newest Python (PEP
701, PEP 750), and continues after syntax errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_LINE_END = r"(?:\r\n|\r|\n)"

#: IPython syntax at the start of a logical line. It extends to the end of the line, and to further
#: lines after a backslash (IPython's ``find_end_of_continued_line``).
_IPYTHON_LINE = re.compile(r"[ \t\f]*[%!?]")
_CONTINUED_LINE = re.compile(rf"(?:[^\r\n]*\\{_LINE_END})*[^\r\n]*(?:{_LINE_END}|\Z)")

_CODE_TOKEN = re.compile(
    rf"""
      (?P<comment> \#[^\r\n]* )
    | (?P<end> {_LINE_END} )
    | (?P<joined> \\{_LINE_END} )
    | (?P<ipython> (?<![=!<>])=[ \t]*(?=[!%]) )  # files = !ls
    | (?P<string> (?P<prefix> [rbuftRBUFT]{{0,2}} ) (?P<quote> '{{3}} | "{{3}} | ['"] ) )
    | (?P<open> [(\[{{] )
    | (?P<close> [)\]}}] )
    | (?P<colon> : )
    | \w+ | [ \t]+ | .
    """,
    re.VERBOSE | re.DOTALL,
)

#: The rest of a string after its opening quotes, including the closing quotes if there are any.
_STRING_REST = {
    quote: re.compile(pattern, re.DOTALL)
    for quote, pattern in {
        "'": r"(?:\\(?:\r\n|.)?|[^\\'\r\n])*+'?",
        '"': r'(?:\\(?:\r\n|.)?|[^\\"\r\n])*+"?',
        "'''": r"(?:\\(?:\r\n|.)?|[^\\']|'(?!''))*+(?:''')?",
        '"""': r'(?:\\(?:\r\n|.)?|[^\\"]|"(?!""))*+(?:""")?',
    }.items()
}

_FORMAT_TOKEN = re.compile(
    rf"""
      \\(?:\r\n|[^{{}}])?
    | (?P<doubled> \{{\{{ | \}}\}} )
    | (?P<open> \{{ )
    | (?P<close> \}} )
    | (?P<quote> '{{3}} | "{{3}} | ['"] )
    | (?P<end> {_LINE_END} )
    | [^\\{{}}'"\r\n]+
    """,
    re.VERBOSE | re.DOTALL,
)

#: The kinds of open scopes: a bracket, a replacement field of an f-string and its format spec. An
#: open f-string itself is represented by its quotes.
_BRACKET, _FIELD, _FORMAT = "(", "{", ":"


class CellLine(msgspec.Struct, frozen=True):
    """A line of a cell: its number (from 1), its text and its line ending, if any.

    ``starts_logical_line`` is False inside strings and brackets and on continuation lines.
    ``is_ipython`` is True if the logical line starting here is IPython syntax: ``%magic``,
    ``!command``, ``files = !ls``.
    """

    number: int
    text: str
    end: str
    starts_logical_line: bool
    is_ipython: bool = False


def split_lines(source: str) -> tuple[CellLine, ...]:
    """Split ``source`` into lines as Python counts them, without losing a character."""
    starts = dict(_logical_line_starts(source))
    lines, position = [], 0
    for number, match in enumerate(re.finditer(rf"[^\r\n]*(?:{_LINE_END}|\Z)", source), 1):
        if match[0]:
            text = match[0].rstrip("\r\n")
            end, is_ipython = match[0][len(text) :], starts.get(position, False)
            lines.append(CellLine(number, text, end, position in starts, is_ipython))
        position = match.end()
    return tuple(lines)


def _logical_line_starts(source: str) -> Iterator[tuple[int, bool]]:
    """Yield where logical lines start and whether they are IPython syntax. Blank lines count."""
    position = 0
    while position < len(source):
        start, is_ipython = position, _IPYTHON_LINE.match(source, position) is not None
        if not is_ipython:
            position, is_ipython = _skip_code(source, position)
        if is_ipython:
            rest = _CONTINUED_LINE.match(source, position)
            assert rest is not None
            position = rest.end()
        yield start, is_ipython


def _skip_code(source: str, position: int) -> tuple[int, bool]:
    """Return where the logical line at ``position`` ends or turns into IPython syntax."""
    scopes: list[str] = []
    while position < len(source):
        if scopes and (scopes[-1] == _FORMAT or scopes[-1] in _STRING_REST):
            position = _skip_format_text(source, position, scopes)
            continue
        token = _CODE_TOKEN.match(source, position)
        assert token is not None
        position = token.end()
        if not scopes and (token["end"] or token["ipython"]):
            return position, token["end"] is None
        if token["string"]:
            position = _skip_string(source, token, scopes)
        else:
            _track_brackets(token, scopes)
    return position, False


def _track_brackets(token: re.Match[str], scopes: list[str]) -> None:
    """Update the open brackets and the open fields of f-strings."""
    innermost = scopes[-1] if scopes else ""
    if token["open"]:
        scopes.append(_BRACKET)
    elif token["close"]:
        if innermost == _BRACKET or (innermost == _FIELD and token["close"] == "}"):
            scopes.pop()
    elif token["colon"] and innermost == _FIELD:
        scopes.append(_FORMAT)


def _skip_string(source: str, token: re.Match[str], scopes: list[str]) -> int:
    """Return where the string opened by ``token`` ends; f-strings are entered, not skipped."""
    quotes = token["quote"]
    if {"f", "t"} & set(token["prefix"].lower()):
        scopes.append(quotes)
        return token.end()
    match = _STRING_REST[quotes].match(source, token.end())
    assert match is not None
    return match.end()


def _skip_format_text(source: str, position: int, scopes: list[str]) -> int:
    """Skip one token of the text, or of a format spec, of an f-string."""
    index = max(index for index, scope in enumerate(scopes) if scope in _STRING_REST)
    quotes, in_format = scopes[index], scopes[-1] == _FORMAT
    if source.startswith(quotes, position):
        del scopes[index:]
        return position + len(quotes)
    token = _FORMAT_TOKEN.match(source, position)
    if token is None or (token["quote"] and len(token["quote"]) > 1):
        return position + 1
    if token["end"] and len(quotes) == 1:
        # The closing quote is missing: end the string here, and read the line ending as code.
        del scopes[index:]
        return position
    if token["open"] or (token["doubled"] == "{{" and in_format):
        scopes.append(_FIELD)
        return position + 1
    if in_format and (token["close"] or token["doubled"]):
        del scopes[-2:]
        return position + 1
    return token.end()
