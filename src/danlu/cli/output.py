"""Data on stdout: JSON, and tables that stay readable when they are cut into fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danlu.cli.terminal import Terminal, clean, columns

__all__ = ["print_json", "print_table"]


def print_json(value: Any, terminal: Terminal) -> None:
    """Write ``value`` as indented JSON."""
    import json

    terminal.data(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    terminal: Terminal,
    *,
    right: Sequence[int] = (),
) -> None:
    """Write a table, columns two spaces apart; ``right`` are the columns aligned to the right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(head, *cells, strict=True)]
    for number, row in enumerate([list(head), *cells]):
        parts = [
            _padded(cell, width, right=index in right)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(parts).rstrip()
        terminal.data(terminal.out_style(line, "bold") if number == 0 else line)


def _padded(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - columns(cell))
    return space + cell if right else cell + space
