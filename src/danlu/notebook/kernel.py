"""Start of the kernel ``danlu``: ``python -m danlu.notebook.kernel -f CONNECTION_FILE``.

What it starts is IPython's own kernel with the magics loaded
(:class:`danlu.notebook.kernelclass.DanluKernel`); all options of ``ipykernel_launcher`` are taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the kernel until it is shut down."""
    _forget_directory()
    from ipykernel.kernelapp import IPKernelApp

    from danlu.notebook.kernelclass import DanluKernel

    IPKernelApp.launch_instance(
        None if arguments is None else list(arguments), kernel_class=DanluKernel
    )


def _forget_directory() -> None:
    """Take the notebook's directory, which ``-m`` put first, off the path while things load.

    Else a ``random.py`` beside a notebook would keep the kernel from starting. IPython puts it
    back behind the standard library (``InteractiveShellApp.init_path``).
    """
    if sys.path and os.path.abspath(sys.path[0]) == os.getcwd():
        del sys.path[0]


if __name__ == "__main__":
    main()
