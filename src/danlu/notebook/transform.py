"""Cells in ciao's words, for any IPython: recognised before IPython reads a line of them."""

from __future__ import annotations

from typing import Any

from danlu.errors import DanluError
from danlu.notebook.grammar import read_cell

__all__ = ["MAGIC", "install", "to_magic", "uninstall"]

#: The cell magic that such a cell becomes; its body is the cell as it was written.
MAGIC = "danlu_cell"


def to_magic(lines: list[str]) -> list[str]:
    """The lines of a cell; those of a job behind a line of :data:`MAGIC`.

    A cell that is wrong becomes one too, so that the error is raised where the cell is run.
    """
    text = "".join(lines)
    try:
        is_job = read_cell(text) is not None
    except DanluError:
        is_job = True
    return [f"%%{MAGIC}\n", *lines] if is_job else lines


def install(shell: Any) -> None:
    """Read cells of ``shell`` so, before IPython takes blank lines and indentation off them."""
    uninstall(shell)
    shell.input_transformers_cleanup.insert(0, to_magic)


def uninstall(shell: Any) -> None:
    """Read them as IPython does."""
    transforms = shell.input_transformers_cleanup
    while to_magic in transforms:
        transforms.remove(to_magic)
