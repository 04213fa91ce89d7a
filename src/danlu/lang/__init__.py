"""The build language: functions in a ``build.envd`` or a ``build.py`` → an Environment.

It opens no file and no connection; texts come through the :class:`Loader` that is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danlu.lang.evaluation import evaluate, functions
    from danlu.lang.table import TABLE
    from danlu.lang.types import Included, Loader

__all__ = ["TABLE", "Included", "Loader", "evaluate", "functions"]

_HOMES = {
    "TABLE": "danlu.lang.table",
    "Included": "danlu.lang.types",
    "Loader": "danlu.lang.types",
    "functions": "danlu.lang.evaluation",
    "evaluate": "danlu.lang.evaluation",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
