"""JSON with comments and trailing commas, as editors write it (``devcontainer.json``)."""

from __future__ import annotations

import json
import re

#: Strings come first, because ``//`` may be in one.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


def parse_jsonc(text: str) -> object:
    """Return the value of ``text``.

    Comments are replaced by spaces, so that errors name the line and column of the file. Raises
    :class:`ValueError` for invalid JSON, for a name that occurs twice in an object, and for values
    that are nested too deeply.
    """
    plain = _TOKEN.sub(_blank_comment, text.removeprefix("\ufeff"))
    plain = _STRING_OR_COMMA.sub(lambda match: " " if match[0] == "," else match[0], plain)
    try:
        return json.loads(plain, object_pairs_hook=_refuse_duplicates)
    except RecursionError as error:
        raise ValueError("values are nested too deeply") from error


def _blank_comment(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name!r} occurs twice in one object")
        values[name] = value
    return values
