"""The build graph: frozen ops and vertices, their digests, and progress events.

Pure: nothing here reads a disk, a network or a clock. The names are loaded when first asked for: a
command that finds its image made has no use for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danlu.graph.imageconfig import ImageConfig
    from danlu.graph.progress import (
        Ended,
        Event,
        Finished,
        Log,
        Message,
        Progress,
        Started,
        Transfer,
    )
    from danlu.graph.types import (
        WHEEL_TIME,
        AptInstall,
        Bootstrap,
        BuildWheel,
        Bytecode,
        CopyContext,
        CopyImage,
        Deb,
        Exec,
        FileEntry,
        Files,
        Graph,
        HttpFile,
        ImageSource,
        Merge,
        Op,
        Platform,
        Scheme,
        SecretMount,
        Squash,
        Unbuilt,
        Unresolved,
        Vertex,
        Wheel,
        WheelSource,
    )

__all__ = [
    "WHEEL_TIME",
    "AptInstall",
    "Bootstrap",
    "BuildWheel",
    "Bytecode",
    "CopyContext",
    "CopyImage",
    "Deb",
    "Ended",
    "Event",
    "Exec",
    "FileEntry",
    "Files",
    "Finished",
    "Graph",
    "HttpFile",
    "ImageConfig",
    "ImageSource",
    "Log",
    "Merge",
    "Message",
    "Op",
    "Platform",
    "Progress",
    "Scheme",
    "SecretMount",
    "Squash",
    "Started",
    "Transfer",
    "Unbuilt",
    "Unresolved",
    "Vertex",
    "Wheel",
    "WheelSource",
]

_PROGRESS = frozenset(
    {"Ended", "Event", "Finished", "Log", "Message", "Progress", "Started", "Transfer"}
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "progress" if name in _PROGRESS else "types"
    value = getattr(import_module(f"danlu.graph.{module}"), name)
    globals()[name] = value
    return value
