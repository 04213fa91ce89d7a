"""Python packages: which satisfy what was asked for, their files, and wheels as trees.

Owns uv: nothing else runs it, knows its options or reads its messages.
"""

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
