"""HTML that is escaped by construction: text becomes markup only through :func:`element`."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from danlu.util.sanitize import strip_control_sequences

#: Longer texts are cut: names and messages come from programs and clusters.
MAX_TEXT_LENGTH = 2000

_VOID = frozenset({"input", "link", "meta", "br"})


class Html(str):
    """Markup. Everything else is text, and is escaped where it is put into markup."""

    __slots__ = ()


Child = object
"""Markup, a text or number, an iterable of children; None and False are left out."""


def element(name: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element; ``class_`` is ``class``, and ``data_name`` is ``data-name``.

    Attributes that are None or False are left out, those that are True have no value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(clean_text(value))}"')
    head = f"<{' '.join(words)}>"
    return Html(head if name in _VOID else f"{head}{join_html(children)}</{name}>")


def join_html(children: Iterable[Child]) -> Html:
    """Return children one after the other."""
    return Html("".join(map(_render_child, children)))


def _render_child(child: Child) -> str:
    if isinstance(child, Html):
        return str(child)
    if child is None or child is False:
        return ""
    if isinstance(child, str | int | float):
        return escape(clean_text(child), quote=False)
    if isinstance(child, Iterable):
        return join_html(child)
    raise TypeError(f"not a child of an element: {child!r}")


def clean_text(value: object) -> str:
    """Return a text without control sequences, cut if it is very long."""
    text = strip_control_sequences(str(value))
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def escape_lines(text: str) -> Html:
    """Return lines that were cleaned already, with their newlines and of any length."""
    return Html(escape(text, quote=False))


def render_table(
    head: Iterable[Child],
    rows: Iterable[Child],
    *,
    caption: str,
    empty: str | None = None,
    **attributes: object,
) -> Html:
    """Return a table of rows (``tr`` elements) that scrolls sideways if it is too wide.

    Without rows it is the sentence ``empty``, if there is one.
    """
    rows = list(rows)
    if empty is not None and not rows:
        return element("p", empty, class_="dim") if empty else Html()
    titles = element("tr", *(element("th", title, scope="col") for title in head))
    table = element(
        "table",
        element("caption", caption, class_="hidden"),
        element("thead", titles),
        element("tbody", rows),
        **attributes,
    )
    return render_wide(table, caption)


def render_wide(child: Child, label: str) -> Html:
    """Return a region that scrolls sideways if it is too wide, also with the keyboard."""
    return element("div", child, class_="wide", tabindex="0", role="region", aria_label=label)


def render_row(head: Child, *cells: Child, **attributes: object) -> Html:
    """Return a row of a table: its heading, and cells; those that are ``td`` stay as they are."""
    rest = [
        cell if isinstance(cell, Html) and cell.startswith("<td") else element("td", cell)
        for cell in cells
    ]
    return element("tr", element("th", head, scope="row"), rest, **attributes)
