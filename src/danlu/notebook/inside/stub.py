"""``danlu`` in kernels of an environment: ``danlu.report``, and the magics of ``danlu.notebook``.

If the environment has danlu itself, that is imported instead.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_spec = PathFinder.find_spec(
    "danlu", [entry for entry in sys.path if os.path.abspath(entry) != _here]
)
if _spec is not None and _spec.loader is not None and __name__ == "danlu":
    _installed = importlib.util.module_from_spec(_spec)
    sys.modules["danlu"] = _installed
    _spec.loader.exec_module(_installed)
else:
    from danlu.replica_runtime.report import report as report

    def __getattr__(name: str) -> object:
        if name in ("train", "sweep", "attach"):
            hint = "use %%distributed or %jobs attach (%load_ext danlu.notebook)"
            raise AttributeError(f"danlu.{name} is not available in an environment: {hint}")
        raise AttributeError(f"module 'danlu' has no attribute {name!r}")
