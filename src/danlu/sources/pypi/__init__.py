"""Python packages: which satisfy what was asked for, their files, and wheels as trees.

Owns uv: nothing else runs it, knows its options or reads its messages. The names are loaded when
first asked for: a build from a lock resolves nothing, and a project that is looked at builds none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danlu.sources.pypi.compiling import (
        File,
        Pin,
        compile_pins,
        locate_files,
        read_pylock,
        upgrade_options,
    )
    from danlu.sources.pypi.indexes import Indexes, indexes_of, uv_environment
    from danlu.sources.pypi.target import Target, best_wheel, fits
    from danlu.sources.pypi.unpacking import Unpacked, materialise
    from danlu.sources.pypi.uv import Uv, find_uv

__all__ = [
    "File",
    "Indexes",
    "Pin",
    "Target",
    "Unpacked",
    "Uv",
    "best_wheel",
    "compile_pins",
    "find_uv",
    "fits",
    "indexes_of",
    "locate_files",
    "materialise",
    "read_pylock",
    "upgrade_options",
    "uv_environment",
]

_MODULES = {
    **dict.fromkeys(("Indexes", "indexes_of", "uv_environment"), "indexes"),
    **dict.fromkeys(("Target", "best_wheel", "fits"), "target"),
    **dict.fromkeys(("Unpacked", "materialise"), "unpacking"),
    **dict.fromkeys(("Uv", "find_uv"), "uv"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"danlu.sources.pypi.{_MODULES.get(name, 'compiling')}")
    value = globals()[name] = getattr(module, name)
    return value
