"""Results on stdout: tables and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from danlu.cli.terminal import Terminal, text_width
from danlu.util.sanitize import strip_control_sequences

#: What JSON allows in strings, and terminals act upon: controls of 8 bits, overrides of the
#: direction of text. Bytes that are not UTF-8 (PEP 383) would make the document invalid.
_UNSAFE_CHARACTERS = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class TableCell(NamedTuple):
    """A cell of a table in a style of the terminal (``""`` for none)."""

    text: str
    style: str


def print_json(value: Any, terminal: Terminal) -> None:
    """Write ``value`` as indented JSON, which is safe on a terminal and valid UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    terminal.write_stdout(_UNSAFE_CHARACTERS.sub(_escape_character, text))


def _escape_character(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def print_table(
    head: Sequence[str],
    rows: Iterable[Iterable[str | TableCell]],
    terminal: Terminal,
    *,
    right: Sequence[int] = (),
) -> None:
    """Write a table, columns two spaces apart; columns in ``right`` are aligned to the right."""
    table = [[TableCell(title, "bold") for title in head]]
    for row in rows:
        cells = [cell if isinstance(cell, TableCell) else TableCell(cell, "") for cell in row]
        table.append([TableCell(strip_control_sequences(text), style) for text, style in cells])
    widths = [max(text_width(cell.text) for cell in column) for column in zip(*table, strict=True)]
    for row_cells in table:
        last = max((i for i, cell in enumerate(row_cells) if cell.text), default=0)
        parts = []
        for index, (cell, width) in enumerate(zip(row_cells, widths, strict=True)):
            padding = " " * (width - text_width(cell.text))
            text = terminal.style_stdout(cell.text, *filter(None, [cell.style]))
            # No trailing blanks: they would wrap on narrow terminals.
            end = "" if index >= last else padding
            parts.append(padding + text if index in right else text + end)
        terminal.write_stdout("  ".join(parts[: last + 1]))
