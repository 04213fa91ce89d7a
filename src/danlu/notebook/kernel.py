"""The ``danlu`` kernel: IPython's kernel with the magics loaded.

``python -m danlu.notebook.kernel -f CONNECTION_FILE`` starts it; it accepts every option of
``ipykernel_launcher``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__" and sys.path and os.path.abspath(sys.path[0]) == os.getcwd():
    # `python -m` put the notebook's directory first, where a `random.py` would break the imports
    # below. IPython adds it again, after the standard library (InteractiveShellApp.init_path).
    del sys.path[0]

import IPython
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

import danlu

#: The extension that ``%load_ext`` loads in other kernels.
EXTENSION = "danlu.notebook"


class DanluKernel(IPythonKernel):
    """IPython's kernel; ordinary cells run exactly as in IPython.

    ``language_info`` is inherited too, so front ends highlight, check and export code as usual.
    """

    implementation = "danlu"
    implementation_version = danlu.__version__

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._load_magics()

    @property
    def banner(self) -> str:  # type: ignore[override]
        """The first line that consoles show."""
        return f"danlu {danlu.__version__}, on IPython {IPython.__version__}\n"

    def _load_magics(self) -> None:
        # If this fails, the kernel still runs ordinary cells, and %load_ext shows the reason.
        try:
            shell: Any = self.shell
            answer = shell.extension_manager.load_extension(EXTENSION)
        except Exception:
            self.log.exception("cannot load danlu's magics")
        else:
            if answer == "no load function":
                self.log.error("%s is not an IPython extension", EXTENSION)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the kernel until it is shut down."""
    IPKernelApp.launch_instance(
        None if arguments is None else list(arguments), kernel_class=DanluKernel
    )


if __name__ == "__main__":
    main()
