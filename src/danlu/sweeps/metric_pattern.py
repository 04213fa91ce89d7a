"""Read the number that a metric pattern captures in a line of a log."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE
)
#: What may be before a number of which a capture begins in the middle.
_NUMBER_BEFORE = re.compile(r"(?:\d|\d\.|\d[eE][+-]?)$")
#: What patterns written for digits do not match: a sign, and the words for other values.
_NOT_DIGITS = re.compile(
    r"(?<![\w.])(?:[+-](?=\.?\d)|[+-]?(?:nan|inf(?:inity)?)(?!\w))", re.IGNORECASE
)


def find_last_number(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the number where the last match's first group (or the match) begins.

    It is the whole number, however much of it the pattern captures: ``loss=([0-9.]+)`` finds 1200
    in ``loss=1.2E+3``, -0.5 in ``loss=-0.5`` and NaN in ``loss=nan``. The result is None if
    nothing matches, and NaN if what the pattern captures is not a number, or a part of something
    else (``1.5k``, ``1,234``).
    """
    # The same line as if it had digits only: a diverged run must not look like its last good epoch.
    digits = _NOT_DIGITS.sub(lambda found: _replace_by_digits(found[0]), line)
    matches = [*pattern.finditer(line), *(pattern.finditer(digits) if digits != line else ())]
    group = 1 if pattern.groups else 0
    captured = [match for match in matches if match.start(group) >= 0]
    if not captured:
        return None
    last = max(captured, key=lambda match: match.start(group))
    return _read_number(line, last, group)


def _replace_by_digits(text: str) -> str:
    """Return a number of the same length: the positions of matches stay."""
    return "0.0".ljust(len(text), "0") if len(text) > 2 else "0"


def _read_number(line: str, match: re.Match[str], group: int) -> float:
    start = match.start(group)
    number = _NUMBER.match(line, start)
    if number is None or _NUMBER_BEFORE.search(line[:start]):
        return math.nan
    # A unit does not belong to the number if the pattern names it: `time=([0-9.]+)s`.
    named = number.end() == match.end(group) < match.end()
    follows = re.match(r"\w|\.\d|,\d{3}(?!\d)", line[number.end() :])
    return math.nan if follows and not named else float(number[0])
