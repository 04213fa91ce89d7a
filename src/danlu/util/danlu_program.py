"""How other programs, such as ``ssh`` and Jupyter, run this danlu."""

from __future__ import annotations

import os
import sys

#: Selects the machine and engine on which commands run; see `danlu context`.
CONTEXT_VARIABLE = "DANLU_CONTEXT"
#: The context by which the user's machine knows this one, for commands in hints.
CALLER_CONTEXT_VARIABLE = "DANLU_CALLER_CONTEXT"
#: The directory there in which the command was typed.
CALLER_DIRECTORY_VARIABLE = "DANLU_CALLER_DIRECTORY"
#: This machine, with danlu's own engine.
LOCAL_CONTEXT = "local"
#: The engine of a context that names no other.
DEFAULT_ENGINE = "embedded"
#: What selects danlu's directories; graphical programs do not have the variables of a shell.
_DIRECTORY_VARIABLES = ("DANLU_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


#: Before the names of variables whose values another machine has sent with the command.
PASSED_PREFIX = "DANLU_PASSED_"


def read_variable(name: str) -> str | None:
    """Return the value of a variable where the user has typed the command; None if it is unset."""
    return os.environ.get(PASSED_PREFIX + name, os.environ.get(name))


def directory_variables() -> dict[str, str]:
    """Return the variables of this process that select danlu's directories."""
    return {name: os.environ[name] for name in _DIRECTORY_VARIABLES if name in os.environ}


def danlu_program() -> list[str]:
    """Return the words that run this danlu from any directory.

    ``-P`` keeps modules of the current directory, a project, out of it.
    """
    return [sys.executable, "-P", "-m", "danlu"]
