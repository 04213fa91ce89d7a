"""Write values as TOML on one line.

The layout of a file is the caller's: a lock has one package per line, which TOML libraries do not
write, so that branches can be merged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec


def format_key(name: str) -> str:
    """Return ``name`` as a key: bare if it can be, else quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else format_value(name)


def format_value(value: object) -> str:
    """Return a text, number, Boolean, list, tuple or mapping (an inline table) as TOML 1.0."""
    if isinstance(value, Mapping):
        pairs = (f"{format_key(key)} = {format_value(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    # JSON and TOML basic strings have the same escapes (TOML 1.0, "String"), except for DEL.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
