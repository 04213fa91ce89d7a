"""danlu takes machine-learning work from a laptop to a cluster in one tool.

In a ``build.py`` the functions of the build language are imported from here
(``from danlu import base, install, run``), ``danlu.train`` runs a training job and
``danlu.attach`` waits for one that was left running, ``danlu.sweep`` runs many of them; a program
that is trained tells by ``danlu.report`` how far it is. All are loaded when first asked for.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "attach",
    "base",
    "config",
    "data",
    "git_config",
    "include",
    "install",
    "io",
    "report",
    "run",
    "runtime",
    "shell",
    "sweep",
    "train",
]


#: By name: every package imports from this one, and stands below the API.
_ELSEWHERE = {
    "attach": "danlu.api",
    "report": "danlu.guest.report",
    "sweep": "danlu.api",
    "train": "danlu.api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'danlu' has no attribute '{name}'")
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    from danlu.lang.api import LANGUAGE

    return LANGUAGE[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
