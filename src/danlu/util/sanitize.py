"""Make text of programs and servers safe to print: no control sequences, one line, not too long."""

from __future__ import annotations

import os
import re

MAX_TEXT_LENGTH = 300
#: For why a program failed: a chain of causes, of which the last one matters.
MAX_REASON_LENGTH = 2000

#: ECMA-48 control sequences, operating system commands and two-byte escapes.
_ESCAPE_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
#: Control characters but tab, and the bidirectional overrides that can reorder what is displayed.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_unprintable(text: str | bytes, *, limit: int = MAX_TEXT_LENGTH) -> str:
    """Return untrusted ``text`` on one line with unprintable characters escaped.

    For names and messages that a reader must be able to tell apart: nothing is dropped silently.
    Text longer than ``limit`` characters is cut, and ends in ``…``.
    """
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    shown = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in shown
    )


def read_last_line(errors: str | bytes, *, otherwise: str = "") -> str:
    """Return the last line that a program has printed, for a message; ``otherwise`` if none."""
    text = errors if isinstance(errors, str) else errors.decode(errors="replace")
    lines = text.strip().splitlines()
    return escape_unprintable(lines[-1].strip(), limit=MAX_REASON_LENGTH) if lines else otherwise


def strip_control_sequences(text: str) -> str:
    """Return ``text`` without anything that moves the cursor, sets colours or reorders the line.

    For a program's output, where colours and progress bars are noise.
    """
    return _CONTROL_CHARACTERS.sub("", _ESCAPE_SEQUENCES.sub("", text))
