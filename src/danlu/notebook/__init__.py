"""Training jobs from cells: magics for any IPython kernel, one that has them loaded, live views.

``%load_ext danlu.notebook`` loads the magics; nothing of IPython is imported before that.
"""

from __future__ import annotations

from typing import Any

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(ipython: Any) -> None:
    """Give an IPython shell the magics: what ``%load_ext danlu.notebook`` calls."""
    from danlu.notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take them away: ``%unload_ext danlu.notebook``."""
    from danlu.notebook.magics import unload

    unload(ipython)
