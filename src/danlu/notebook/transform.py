"""Cells that are jobs, recognised before IPython reads a line of them.

IPython takes leading blank lines and the blanks of empty ones off a cell, which may be part of a
text in its code. So a job is made a call first, with the cell as it was written. Whether a cell at
a prompt is complete is another question: that is answered as for any cell magic.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from danlu.errors import DanluError, UsageError
from danlu.notebook.grammar import read_cell, read_options
from danlu.notebook.types import Cell

__all__ = ["MAGIC", "OPTIONS", "install", "options_of", "read", "to_call", "to_magic", "uninstall"]

#: The cell magic that such a cell becomes; its body is the whole cell.
MAGIC = "danlu_cell"

#: The one that people write.
OPTIONS = "distributed"

_OPTIONS = re.compile(
    rf"(?P<above>(?:[ \t]*\n)*)%%{OPTIONS}(?P<line>[ \t][^\n]*)?(?:\n(?P<body>.*))?", re.DOTALL
)


def to_call(lines: list[str]) -> list[str]:
    """The lines of a cell; of a job one line of Python, which nothing of IPython changes.

    A cell that is wrong becomes one too, so that the error is raised where the cell is run.
    """
    text = "".join(lines)
    if not (_OPTIONS.fullmatch(text) or _is_ciao(text)):
        return lines
    return [f"get_ipython().run_cell_magic({MAGIC!r}, '', {text!r})\n"]


#: So IPython leaves it out where it only asks whether a cell is complete.
to_call.has_side_effects = True  # type: ignore[attr-defined]


def to_magic(lines: list[str]) -> list[str]:
    """The lines of a cell; those of a job in ciao's words behind a line of :data:`MAGIC`."""
    return [f"%%{MAGIC}\n", *lines] if _is_ciao("".join(lines)) else lines


def _is_ciao(text: str) -> bool:
    try:
        return read_cell(text) is not None
    except DanluError:
        return True


def options_of(text: str) -> tuple[str, str, str] | None:
    """What stands above, after and below ``%%distributed``; None for another cell."""
    found = _OPTIONS.fullmatch(text)
    if found is None:
        return None
    return found["above"], (found["line"] or "").strip(), found["body"] or ""


def read(text: str) -> Cell:
    """The job that a whole cell is; raises :class:`UsageError` where it is none, or wrong."""
    found = options_of(text)
    if found is not None:
        above, line, body = found
        cell = read_options(line, body)
        return msgspec.structs.replace(cell, code="\n" * above.count("\n") + cell.code)
    written = read_cell(text)
    if written is None:
        raise UsageError("the cell names no job", hint="%%distributed runs any cell as one")
    return written


def install(shell: Any) -> None:
    """Read cells of ``shell`` so."""
    uninstall(shell)
    shell.input_transformers_cleanup[:0] = [to_call, to_magic]


def uninstall(shell: Any) -> None:
    """Read them as IPython does."""
    transforms = shell.input_transformers_cleanup
    for one in (to_call, to_magic):
        while one in transforms:
            transforms.remove(one)
