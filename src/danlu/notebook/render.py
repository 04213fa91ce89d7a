"""A board as HTML: one self-contained piece, without scripts, of a bounded size.

Notebooks that are opened again are often not trusted: their HTML goes through a sanitizer that
leaves inline styles and images of ``data:`` addresses, and takes scripts, style sheets and inline
SVG away. Colours are such as can be read on white and on black; attributes stand in single quotes,
which a message in JSON holds as they are.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from zlib import crc32

from danlu.jobs.types import ReplicaView
from danlu.notebook import plain
from danlu.notebook.board import HEAD, ROWS, Board, Line, chosen, fields, hidden, left, tone
from danlu.notebook.curve import Series, number, svg
from danlu.util.human import format_duration
from danlu.util.plaintext import clean

__all__ = ["MOST", "bundle", "coloured", "faint", "html", "rows", "size"]

#: Bytes of one message with a board: four of them a second are far from Jupyter's 1 MB/s.
MOST = 48 << 10

#: So many bytes at most are lines, however much room there is, and are kept for them.
_LINES, _LEAST = 24 << 10, 4 << 10

#: So many bytes at most are text.
_PLAIN = 12 << 10

#: How many replicas have a row and how many metrics a curve, in full and where there is no room.
_DETAILS = ((ROWS, 4), (16, 2), (4, 0))

#: Characters of a line.
_LONGEST = 1000

_TONES = {
    "good": "#2e8b4f",
    "bad": "#d0454c",
    "busy": "#2f81d6",
    "wait": "#b8720a",
    "still": "#767676",
}
_PREFIXES = ("#14868c", "#2e8b4f", "#b8720a", "#2f81d6", "#9a5fd0", "#c2478f")
_FAINT = "#767676"
_BORDER = "1px solid #a0a0a0"
_CELL = "padding:1px 12px 1px 0;text-align:left"
_MONO = "font-family:monospace;font-size:12px;line-height:1.35"


def bundle(board: Board) -> dict[str, str]:
    """The board by MIME type, of :data:`MOST` bytes at most as JSON."""
    text = plain.text(board)
    while size(text) > _PLAIN:
        text = text[: len(text) * 3 // 4]
    return {"text/html": html(board, MOST - 256 - size(text)), "text/plain": text}


def size(text: str) -> int:
    """The bytes of a text as JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace"))


def html(board: Board, most: int = MOST) -> str:
    """The board in ``most`` bytes as JSON; lines of logs take what the rest leaves."""
    after = _foot(board)
    most -= size(after) + 256
    for rows, curves in _DETAILS:
        before = _before(board, rows, curves)
        if size(before) <= most - _LEAST:
            break
    logs = _logs(board, min(most - size(before), _LINES))
    return f"<div class='danlu-job' style='max-width:72em'>{before}{logs}{after}</div>"


def _before(board: Board, rows: int, curves: int) -> str:
    return "".join(
        (
            _head(board),
            _notes(board),
            _table(board, rows),
            _progress(board, curves),
            _curves(board, curves),
        )
    )


def _text(text: str, most: int = 400) -> str:
    whole = clean(text)
    return escape(whole if len(whole) <= most else f"{whole[: most - 1]}…", quote=False)


def coloured(text: str, state: str, *, escaped: bool = False) -> str:
    """A text in the colour of a state."""
    inner = text if escaped else _text(text)
    return f"<span style='color:{_TONES[tone(state)]}'>{inner}</span>"


def faint(text: str) -> str:
    """HTML that is less than the rest."""
    return f"<span style='color:{_FAINT}'>{text}</span>"


# -- above the logs -------------------------------------------------------------------------------


def _head(board: Board) -> str:
    parts = [f"<b>{_text(board.name)}</b>"]
    if board.kind:
        parts.append(faint(_text(board.kind)))
    parts.append(coloured(board.state, board.state))
    if board.seconds is not None:
        parts.append(faint(format_duration(board.seconds)))
    return f"<div>{' '.join(parts)}</div>"


def _notes(board: Board) -> str:
    colour = _TONES["wait"]
    return "".join(
        f"<div style='color:{colour}'>⚠ {_text(one, 200)}</div>" for one in board.notes[:5]
    )


def _table(board: Board, room: int) -> str:
    if not board.replicas:
        return ""
    shown = chosen(board.replicas, room)
    found = rows(HEAD, [_row(one, board.links.get(str(one.id), "")) for one in shown])
    more = hidden(board.replicas, room)
    return found + (f"<div>{faint(_text(more))}</div>" if more else "")


def _row(one: ReplicaView, link: str) -> list[str]:
    texts = list(map(_text, fields(one)))
    texts[1] = coloured(texts[1], one.state, escaped=True)
    if link:
        texts[0] = _link(texts[0], link)
    return texts


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML."""
    above = "".join(f"<th style='{_CELL};color:{_FAINT}'>{one}</th>" for one in head)
    below = "".join(
        "<tr>" + "".join(f"<td style='{_CELL}'>{one}</td>" for one in row) + "</tr>" for row in body
    )
    style = "margin:4px 0;border-collapse:collapse"
    return (
        f"<div style='overflow-x:auto'><table style='{style}'><thead><tr>{above}</tr></thead>"
        f"<tbody>{below}</tbody></table></div>"
    )


def _link(shown: str, address: str) -> str:
    return f"<a href='{escape(address)}' target='_blank'>{shown}</a>"


def _progress(board: Board, curves: int) -> str:
    found = board.progress
    if found is None:
        return ""
    parts = []
    if found.percentage is not None:
        width = max(0, min(100, found.percentage))
        bar = f"<div style='width:{width}%;height:8px;background-color:{_TONES['good']}'></div>"
        parts.append(
            f"<div style='display:inline-block;width:16em;border:{_BORDER}'>{bar}</div>"
            f" {found.percentage} %"
        )
    if left(found) and not board.ended:
        parts.append(faint(left(found)))
    drawn = {one.name for one in board.series[:curves]}
    others = [name for name in found.metrics if name not in drawn][:20]
    parts += [f"{_text(name, 40)} {number(found.metrics[name])}" for name in others]
    return f"<div style='margin:4px 0'>{' &ensp; '.join(parts)}</div>"


def _curves(board: Board, most: int) -> str:
    drawn = "".join(map(_curve, board.series[:most]))
    return f"<div>{drawn}</div>" if drawn else ""


def _curve(series: Series) -> str:
    data = b64encode(svg(series).encode()).decode()
    name = escape(f"{clean(series.name)[:40]} over time, now {number(series.last)}")
    return (
        f"<img class='danlu-curve' alt='{name}' title='{name}' style='margin:4px 12px 4px 0'"
        f" src='data:image/svg+xml;base64,{data}'>"
    )


# -- the logs -------------------------------------------------------------------------------------


def _logs(board: Board, room: int) -> str:
    """The newest lines that have room, in a box that stands at its end.

    The last item of a column that is filled from below is where such a box begins to be read.
    """
    if not board.lines:
        return ""
    width = max(len(one.who) for one in board.lines)
    kept: list[str] = []
    for one in reversed(board.lines):
        drawn = _line(one, width)
        room -= size(drawn)
        if room < 0:
            break
        kept.append(drawn)
    before = board.written - len(kept)
    told = faint(f"… {before:,} lines before") + "\n" if before > 0 else ""
    box = (
        f"display:flex;flex-direction:column-reverse;max-height:20em;overflow:auto;"
        f"border:{_BORDER};padding:2px 8px;margin:4px 0"
    )
    pre = f"margin:0;padding:0;white-space:pre-wrap;overflow-wrap:break-word;{_MONO}"
    body = f"<pre style='{pre}'>{told}{''.join(reversed(kept))}</pre>"
    # The div between them keeps the height of its lines: a pre that JupyterLab lets scroll would
    # shrink to the box, and show the oldest lines.
    return f"<div class='danlu-logs' style='{box}'><div>{body}</div></div>"


def _line(one: Line, width: int) -> str:
    colour = _colour(one.who)
    who = escape(one.who.ljust(width), quote=False)
    return f"<span style='color:{colour}'>{who} │</span> {_text(one.text, _LONGEST)}\n"


def _colour(who: str) -> str:
    """A replica's colour: the same in every run, another for its neighbours."""
    type, _, index = who.rpartition("-")
    place = crc32(type.encode()) + (int(index) if index.isdigit() else 0)
    return _PREFIXES[place % len(_PREFIXES)]


# -- below them -----------------------------------------------------------------------------------


def _foot(board: Board) -> str:
    if not board.ended:
        return ""
    colour = _TONES[tone(board.state)]
    parts = [f"<div style='color:{colour}'>{_text(board.ended, 1000)}</div>"]
    if board.logs:
        command = f"danlu jobs logs {board.name}"
        parts.append(
            f"<div>{faint('complete logs:')} <code>{_text(board.logs, 500)}</code>"
            f" {faint('or')} <code>{_text(command)}</code></div>"
        )
    return "".join(parts)
