"""The lines of a cell, and which of them begin a logical line of code.

Python's own tokenizer is of no use here: it stops at IPython's lines (``!pip``, ``%matplotlib``),
and that of 3.11 does not know the nested quotes of later f-strings. This reader only keeps strings,
brackets and continuations apart from code, by the rules of the newest Python (PEP 701, PEP 750),
and goes on after whatever is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

__all__ = ["Line", "lines_of"]

_END = r"(?:\r\n|\r|\n)"

#: What is no Python where a logical line begins: it runs to the end of its line, and further where
#: that ends with a backslash (IPython's ``find_end_of_continued_line``).
_FOREIGN = re.compile(r"[ \t\f]*[%!?]")
_REST = re.compile(rf"(?:[^\r\n]*\\{_END})*[^\r\n]*(?:{_END}|\Z)")

_CODE = re.compile(
    rf"""
      (?P<comment> \#[^\r\n]* )
    | (?P<end> {_END} )
    | (?P<joined> \\{_END} )
    | (?P<foreign> (?<![=!<>])=[ \t]*(?=[!%]) )  # files = !ls
    | (?P<string> (?P<prefix> [rbuftRBUFT]{{0,2}} ) (?P<quote> '{{3}} | "{{3}} | ['"] ) )
    | (?P<open> [(\[{{] )
    | (?P<close> [)\]}}] )
    | (?P<colon> : )
    | \w+ | [ \t]+ | .
    """,
    re.VERBOSE | re.DOTALL,
)

#: What follows the quotes of a string, its closing quotes included where it has them.
_PLAIN = {
    quote: re.compile(pattern, re.DOTALL)
    for quote, pattern in {
        "'": r"(?:\\(?:\r\n|.)?|[^\\'\r\n])*+'?",
        '"': r'(?:\\(?:\r\n|.)?|[^\\"\r\n])*+"?',
        "'''": r"(?:\\(?:\r\n|.)?|[^\\']|'(?!''))*+(?:''')?",
        '"""': r'(?:\\(?:\r\n|.)?|[^\\"]|"(?!""))*+(?:""")?',
    }.items()
}

_TEXT = re.compile(
    rf"""
      \\(?:\r\n|[^{{}}])?
    | (?P<doubled> \{{\{{ | \}}\}} )
    | (?P<open> \{{ )
    | (?P<close> \}} )
    | (?P<quote> '{{3}} | "{{3}} | ['"] )
    | (?P<end> {_END} )
    | [^\\{{}}'"\r\n]+
    """,
    re.VERBOSE | re.DOTALL,
)

#: What is open around a place: a bracket, the field of a formatted string, its format, and the
#: text of a formatted string, which is written as its quotes.
_BRACKET, _FIELD, _FORMAT = "(", "{", ":"


class Line(msgspec.Struct, frozen=True):
    """A line of a cell: its number (from 1), its text, and how it ends (nothing for the last).

    ``begins`` says that a logical line begins here: it is not inside of a string or of brackets,
    nor continues the line before it. ``foreign`` says that what begins here is for IPython alone:
    ``%magic``, ``!command``, ``files = !ls``.
    """

    number: int
    text: str
    end: str
    begins: bool
    foreign: bool = False


def lines_of(source: str) -> tuple[Line, ...]:
    """The lines of ``source`` as Python counts them; their texts and ends make up all of it."""
    begins = dict(_beginnings(source))
    found, position = [], 0
    for number, match in enumerate(re.finditer(rf"[^\r\n]*(?:{_END}|\Z)", source), 1):
        if match[0]:
            text = match[0].rstrip("\r\n")
            end, foreign = match[0][len(text) :], begins.get(position, False)
            found.append(Line(number, text, end, position in begins, foreign))
        position = match.end()
    return tuple(found)


def _beginnings(source: str) -> Iterator[tuple[int, bool]]:
    """Where logical lines begin, and whether they are foreign; empty lines count as such lines."""
    position = 0
    while position < len(source):
        begin, foreign = position, _FOREIGN.match(source, position) is not None
        if not foreign:
            position, foreign = _after_code(source, position)
        if foreign:
            rest = _REST.match(source, position)
            assert rest is not None
            position = rest.end()
        yield begin, foreign


def _after_code(source: str, position: int) -> tuple[int, bool]:
    """Where the logical line that begins at ``position`` ends, or turns into a foreign one."""
    around: list[str] = []
    while position < len(source):
        if around and (around[-1] == _FORMAT or around[-1] in _PLAIN):
            position = _in_text(source, position, around)
            continue
        token = _CODE.match(source, position)
        assert token is not None
        position = token.end()
        if not around and (token["end"] or token["foreign"]):
            return position, token["end"] is None
        if token["string"]:
            position = _in_string(source, token, around)
        else:
            _in_code(token, around)
    return position, False


def _in_code(token: re.Match[str], around: list[str]) -> None:
    """Keep account of brackets, and of the fields of formatted strings."""
    inner = around[-1] if around else ""
    if token["open"]:
        around.append(_BRACKET)
    elif token["close"]:
        if inner == _BRACKET or (inner == _FIELD and token["close"] == "}"):
            around.pop()
    elif token["colon"] and inner == _FIELD:
        around.append(_FORMAT)


def _in_string(source: str, token: re.Match[str], around: list[str]) -> int:
    """Where a string ends whose quotes were just opened; a formatted one is only entered."""
    quote = token["quote"]
    if {"f", "t"} & set(token["prefix"].lower()):
        around.append(quote)
        return token.end()
    match = _PLAIN[quote].match(source, token.end())
    assert match is not None
    return match.end()


def _in_text(source: str, position: int, around: list[str]) -> int:
    """Go on in the text, or in a format, of a formatted string."""
    place = max(index for index, one in enumerate(around) if one in _PLAIN)
    quote, formatting = around[place], around[-1] == _FORMAT
    if source.startswith(quote, position):
        del around[place:]
        return position + len(quote)
    token = _TEXT.match(source, position)
    if token is None or (token["quote"] and len(token["quote"]) > 1):
        return position + 1
    if token["end"] and len(quote) == 1:
        # Its quotes are missing: the string ends with the line, which is yet to be read as code.
        del around[place:]
        return position
    if token["open"] or (token["doubled"] == "{{" and formatting):
        around.append(_FIELD)
        return position + 1
    if formatting and (token["close"] or token["doubled"]):
        del around[-2:]
        return position + 1
    return token.end()
