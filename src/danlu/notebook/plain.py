"""A board as text: for notebooks without HTML, and what a notebook keeps for programs."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.notebook.board import HEAD, Board, Line, chosen, fields, hidden, left
from danlu.notebook.curve import number
from danlu.util.human import format_duration
from danlu.util.plaintext import clean

__all__ = ["prefixed", "table", "text"]

_BAR = 24

#: So many of the newest lines are shown, of so many characters.
_LINES, _LONGEST = 20, 160

_ENDED = 1000

_ROWS = 20


def text(board: Board) -> str:
    """The whole board, a few kilobytes at most."""
    rows = [fields(one) for one in chosen(board.replicas, _ROWS)]
    parts = [
        head(board),
        *(f"! {clean(one)[:_LONGEST]}" for one in board.notes[:5]),
        *(table(HEAD, rows) if rows else ()),
        hidden(board.replicas, _ROWS),
        progress(board),
        *prefixed(board.lines[-_LINES:], board.written),
        clean(board.ended)[:_ENDED],
        f"complete logs: {board.logs}" if board.ended and board.logs else "",
    ]
    return "\n".join(filter(None, parts))


def head(board: Board) -> str:
    """The first line: ``demo PyTorchJob Running 12.0 s``."""
    seconds = "" if board.seconds is None else format_duration(board.seconds)
    return " ".join(filter(None, (board.name, board.kind, board.state, seconds)))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be, under their heads."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(one.ljust(width) for one, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def progress(board: Board) -> str:
    """How far, how long still, and the last of each metric."""
    found = board.progress
    if found is None:
        return ""
    parts = []
    if found.percentage is not None:
        full = round(_BAR * max(0, min(100, found.percentage)) / 100)
        parts.append(f"{'█' * full}{'░' * (_BAR - full)} {found.percentage} %")
    if not board.ended:
        parts.append(left(found))
    names = list(found.metrics)[:_ROWS]
    parts += [f"{clean(name)[:40]} {number(found.metrics[name])}" for name in names]
    return "  ".join(filter(None, parts))


def prefixed(lines: Sequence[Line], written: int) -> list[str]:
    """Lines behind the names of who wrote them; how many there are before them."""
    width = max((len(one.who) for one in lines), default=0)
    before = written - len(lines)
    told = [f"… {before:,} lines before"] if before > 0 else []
    return told + [f"{one.who.ljust(width)} │ {one.text[:_LONGEST]}".rstrip() for one in lines]
