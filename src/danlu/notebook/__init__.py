"""Training jobs from notebook cells: an IPython extension, a kernel and live views.

``%load_ext danlu.notebook`` loads the extension. Importing this package does not import IPython.
"""

from __future__ import annotations

from typing import Any

from danlu.notebook.preload import load_cell_modules

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(ipython: Any) -> None:
    """Load the magics into an IPython shell. Called by ``%load_ext danlu.notebook``."""
    load_cell_modules()
    # Imported by the line above, where an interrupt cannot break off the import.
    from danlu.notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the magics from an IPython shell. Called by ``%unload_ext danlu.notebook``."""
    # Imported by load_ipython_extension.
    from danlu.notebook.magics import unload

    unload(ipython)
