"""IPython input transformers that recognize job cells before IPython changes them.

IPython strips leading blank lines and the white space of blank lines, which can be part of a string
in the code. So a job cell is turned into a call first, with its text unchanged. When a console asks
whether a cell is complete, it is treated like any cell magic instead.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from danlu.errors import DanluError, UsageError
from danlu.notebook.parser import parse_cell, parse_distributed
from danlu.notebook.types import Cell

#: The internal cell magic that a job cell becomes, with the whole cell as its body.
CELL_MAGIC = "danlu_cell"

#: The cell magic that users write.
DISTRIBUTED_MAGIC = "distributed"

_DISTRIBUTED_CELL = re.compile(
    rf"(?P<above>(?:[ \t]*\n)*)%%{DISTRIBUTED_MAGIC}(?P<line>[ \t][^\n]*)?(?:\n(?P<body>.*))?",
    re.DOTALL,
)


def transform_to_call(lines: list[str]) -> list[str]:
    """Turn a job cell into one line of Python, which IPython's transformers leave alone.

    Invalid job cells are turned into a call too: the error is raised when the cell runs.
    """
    text = "".join(lines)
    if not is_job_cell(text):
        return lines
    return [f"get_ipython().run_cell_magic({CELL_MAGIC!r}, '', {text!r})\n"]


#: IPython skips such transformers when it only checks whether a cell is complete.
transform_to_call.has_side_effects = True  # type: ignore[attr-defined]


def transform_to_magic(lines: list[str]) -> list[str]:
    """Put the internal cell magic in front of a cell with directives."""
    return [f"%%{CELL_MAGIC}\n", *lines] if _is_directive_cell("".join(lines)) else lines


def is_job_cell(text: str) -> bool:
    """Return whether a cell is a job, or was meant as one."""
    return bool(_DISTRIBUTED_CELL.fullmatch(text)) or _is_directive_cell(text)


def _is_directive_cell(text: str) -> bool:
    try:
        return parse_cell(text) is not None
    except DanluError:
        return True


def split_distributed(text: str) -> tuple[str, str, str] | None:
    """Split a ``%%distributed`` cell: the blank lines above it, its options, and its body."""
    match = _DISTRIBUTED_CELL.fullmatch(text)
    if match is None:
        return None
    return match["above"], (match["line"] or "").strip(), match["body"] or ""


def parse_job_cell(text: str) -> Cell:
    """Parse a whole cell; raises :class:`UsageError` if it is invalid or not a job."""
    parts = split_distributed(text)
    if parts is not None:
        above, line, body = parts
        cell = parse_distributed(line, body)
        return msgspec.structs.replace(cell, code="\n" * above.count("\n") + cell.code)
    parsed = parse_cell(text)
    if parsed is None:
        raise UsageError("this cell is not a job", hint="%%distributed runs any cell as a job")
    return parsed


def install_transformers(shell: Any) -> None:
    """Install the transformers in an IPython shell. Idempotent."""
    uninstall_transformers(shell)
    shell.input_transformers_cleanup[:0] = [transform_to_call, transform_to_magic]


def uninstall_transformers(shell: Any) -> None:
    """Remove the transformers from an IPython shell."""
    transformers = shell.input_transformers_cleanup
    for transformer in (transform_to_call, transform_to_magic):
        while transformer in transformers:
            transformers.remove(transformer)
