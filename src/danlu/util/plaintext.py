"""Text of programs as a person may be shown it."""

from __future__ import annotations

import re

__all__ = ["clean"]

#: ECMA-48 control sequences, operating system commands and two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """``text`` without what would move the cursor, change colours or reorder the line."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))
