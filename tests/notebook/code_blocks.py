"""The blocks of code in a page, in the order in which a reader meets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["CodeBlock", "blocks_of"]

_BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class CodeBlock(NamedTuple):
    """A block: the word after its backticks, and its text."""

    kind: str
    text: str


def blocks_of(page: Path) -> list[CodeBlock]:
    """All blocks of a page."""
    return [CodeBlock(match["kind"], match["text"]) for match in _BLOCK.finditer(page.read_text())]
