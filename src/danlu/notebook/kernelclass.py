"""The kernel: IPython's, with danlu's magics loaded. Imported only where it is started."""

from __future__ import annotations

from typing import Any

import IPython
from ipykernel.ipkernel import IPythonKernel

import danlu

__all__ = ["EXTENSION", "DanluKernel"]

#: What ``%load_ext`` would load.
EXTENSION = "danlu.notebook"


class DanluKernel(IPythonKernel):
    """IPython's kernel, and nothing less: ordinary cells are run by what it inherits.

    ``language_info`` stays IPython's, so that front ends colour, check and export as ever.
    """

    implementation = "danlu"
    implementation_version = danlu.__version__

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._load()

    @property
    def banner(self) -> str:  # type: ignore[override]
        """What consoles show first."""
        return f"danlu {danlu.__version__}, on IPython {IPython.__version__}\n"

    def _load(self) -> None:
        # A kernel that cannot load them still runs ordinary cells, and %load_ext says why.
        try:
            shell: Any = self.shell
            said = shell.extension_manager.load_extension(EXTENSION)
        except Exception:
            self.log.exception("the magics of danlu could not be loaded")
        else:
            if said == "no load function":
                self.log.error("%s has nothing to load", EXTENSION)
