"""Edit a list of strings as text: formatting and comments stay.

The lists of Starlark, Python and TOML are written alike: string literals in brackets, and comments
that begin with ``#``. Functions take the text from the opening bracket to the closing one.
"""

from __future__ import annotations

import ast
import json


def parse_items(array: str) -> list[ast.expr]:
    """Return the items of a list. Raises :class:`SyntaxError` if it is not one."""
    node = ast.parse(array, mode="eval").body
    if not isinstance(node, ast.List):
        raise SyntaxError("not a list")
    return node.elts


def read_text(item: ast.expr) -> str | None:
    """Return the text of a string literal; None for other items."""
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return item.value
    return None


def locate_node(text: str, node: ast.expr) -> tuple[int, int]:
    """Return where a node of the syntax tree of ``text`` begins and ends."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = text.split("\n")
    places = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    # Columns count bytes of UTF-8.
    begin, end = (
        sum(len(line) + 1 for line in lines[: number - 1])
        + len(lines[number - 1].encode()[:column].decode())
        for number, column in places
    )
    return begin, end


def add_item(array: str, text: str) -> str:
    """Add a string at the end, on a separate line if the last one is."""
    items = parse_items(array)
    item = _quote_like(array, items, text)
    if not items:
        inner = array[1:-1]
        return f"[{item},{inner}]" if inner.strip() else f"[{item}]"
    begin, end = locate_node(array, items[-1])
    indent = _find_indent(array, begin)
    if indent is None:
        return f"{array[:end]}, {item}{array[end:]}"
    if "\n" not in array[end:]:
        return f"{array[:end]},{_choose_newline(array)}{indent}{item}{array[end:]}"
    comma = _find_comma(array, end)
    head = array[:end] + "," if comma < 0 else array[: comma + 1]
    rest = array[end if comma < 0 else comma + 1 :]
    line, newline, below = rest.partition("\n")
    if not newline:
        return f"{array[:end]}, {item}{array[end:]}"
    newline = _choose_newline(array)
    item += "" if comma < 0 else ","
    return f"{head}{line.removesuffix(chr(13))}{newline}{indent}{item}{newline}{below}"


def replace_item(array: str, index: int, text: str) -> str:
    """Replace an item with a string."""
    items = parse_items(array)
    begin, end = locate_node(array, items[index])
    return array[:begin] + _quote_like(array, items, text) + array[end:]


def remove_item(array: str, index: int) -> str:
    """Remove an item, with its line and the comment there if nothing else is on it."""
    items = parse_items(array)
    begin, end = locate_node(array, items[index])
    comma = _find_comma(array, end)
    behind = end if comma < 0 else comma + 1
    line, newline, below = array[behind:].partition("\n")
    if _find_indent(array, begin) is not None and newline and _is_blank(line):
        return array[: array.rfind("\n", 0, begin) + 1] + below
    if index + 1 < len(items):
        following = locate_node(array, items[index + 1])[0]
        if not array[behind:following].strip(" "):
            behind = following
        return array[:begin] + array[behind:]
    if index == 0:
        return array[:begin] + array[behind:]
    before = locate_node(array, items[index - 1])[1]
    if "#" in array[before:begin]:
        return array[:begin] + array[behind:]
    return array[:before] + array[end:]


def _quote_like(array: str, items: list[ast.expr], text: str) -> str:
    """Return a string literal with the quotation marks of the last item."""
    single = bool(items) and array[locate_node(array, items[-1])[0]] == "'"
    if single and "'" not in text and "\\" not in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def _choose_newline(array: str) -> str:
    return "\r\n" if "\r\n" in array else "\n"


def _find_indent(array: str, begin: int) -> str | None:
    """Return what is before an item on its line, or None if that is not only white space."""
    start = array.rfind("\n", 0, begin) + 1
    before = array[start:begin]
    return before if start and not before.strip() else None


def _find_comma(array: str, end: int) -> int:
    """Return the place of the comma behind an item, or -1."""
    place = end
    while array[place] != "]":
        if array[place] == ",":
            return place
        place = array.index("\n", place) if array[place] == "#" else place + 1
    return -1


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
