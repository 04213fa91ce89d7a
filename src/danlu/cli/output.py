"""Results on stdout: tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from danlu.cli.terminal import Terminal, text_width
from danlu.util.sanitize import strip_control_sequences


class TableCell(NamedTuple):
    """A cell of a table in a style of the terminal (``""`` for none)."""

    text: str
    style: str


def print_json(value: Any, terminal: Terminal) -> None:
    """Write ``value`` as indented JSON."""
    terminal.write_stdout(json.dumps(value, indent=2, ensure_ascii=False, default=str))


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
