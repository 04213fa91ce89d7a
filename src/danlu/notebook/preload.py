"""Import what cells need when the extension is loaded, while interrupts are held back.

An interrupt in the middle of an import leaves a package half initialized: Python removes the
package from ``sys.modules`` but keeps its submodules there, and the next import of the package
fails with an ``AttributeError`` for the rest of the kernel's life (PyYAML is such a package). So no
cell may be the first to import any of our modules.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

#: What a cell, ``%jobs`` or a function call needs, including modules that others import lazily.
_CELL_MODULES = (
    "danlu.engine.embedded.engine",
    "danlu.submission.run",
    "danlu.jobs.local.client",
    "danlu.notebook.api_display",
    "danlu.notebook.magics",
)


#: What a cell of a notebook in a pod needs as well.
_POD_MODULES = ("danlu.notebook.pod_jobs",)


def load_cell_modules(*, on_cluster: bool = False) -> None:
    """Import everything that cells on this machine or a cluster need, frameworks included."""
    with hold_interrupts():
        for name in (*_CELL_MODULES, *(_POD_MODULES if on_cluster else ())):
            import_module(name)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Defer a SIGINT that arrives within the block to the end of the block.

    Only the main thread receives interrupts; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived and callable(handler):
        handler(*arrived[0])
