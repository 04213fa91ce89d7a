"""The directory that was sent with a cell, as a replica finds it."""

import json
import os
from typing import Any

#: The directory of the cell that this process, or one above it, runs, and its arguments.
RUNNING = "DANLU_CELL"
ARGUMENTS = "DANLU_CELL_ARGUMENTS"

#: The module that stands for ``__main__`` where it is run once more.
AGAIN = "danlu_cell"


class Place:
    """The directory, and what its ``order.json`` says.

    ``beneath`` is whether a process above this one runs the same cell: what that one gives counts.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.beneath = os.environ.get(RUNNING) == directory
        with open(os.path.join(directory, "order.json"), encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.code = self.path(*self.order["code"].split("/"))

    def path(self, *names: str) -> str:
        """A file of the directory."""
        return os.path.join(self.directory, *names)


class Refused(Exception):
    """What is not the code's own failure: told without a traceback, but with what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
