"""Which module does which op: one line an op."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from danlu.builder.embedded.context import Context, Made
from danlu.graph import Op, Vertex
from danlu.store import Layer

__all__ = ["BATCHED", "EXCLUSIVE", "STEPS", "Executor", "Executors", "Modules"]

#: Does one op: its new layers, lowest first, or a :class:`Made` where it gives more than layers.
Executor = Callable[[Any, Context], Awaitable[Sequence[Layer] | Made]]

#: Does many ops of one kind at once, which is cheaper than one by one.
BatchExecutor = Callable[[Sequence[Any], Context], Awaitable[Sequence[Sequence[Layer]]]]

_MODULES = {
    "AptInstall": "apt_install",
    "Bootstrap": "bootstrap",
    "BuildWheel": "build_wheel",
    "Bytecode": "bytecode",
    "CopyContext": "copy_context",
    "CopyImage": "copy_image",
    "Exec": "exec",
    "Files": "files",
    "HttpFile": "http_file",
    "ImageSource": "image_source",
    "Squash": "squash",
    "Wheel": "wheel",
}

#: Ops whose layer lies over their first input's stack and is keyed by its content.
STEPS = frozenset({"AptInstall", "Exec"})

#: Ops whose layers, where they come together, may have no path with different bytes.
EXCLUSIVE = frozenset({"Squash", "Wheel"})

#: Ops without inputs that are done together.
BATCHED = frozenset({"Wheel"})


class Executors(Protocol):
    """Where the solver finds who does an op."""

    def one(self, op: Op) -> Executor:
        """Who does this op."""

    def batch(self, vertices: Sequence[Vertex]) -> BatchExecutor:
        """Who does these vertices' ops, all of one kind in :data:`BATCHED`."""


class Modules:
    """The executors of the embedded builder; their modules load when first needed."""

    def one(self, op: Op) -> Executor:
        """``execute`` of the op's module."""
        executor: Executor = _module(op).execute
        return executor

    def batch(self, vertices: Sequence[Vertex]) -> BatchExecutor:
        """``execute_all`` of the ops' module."""
        executor: BatchExecutor = _module(vertices[0].op).execute_all
        return executor


def _module(op: Op) -> Any:
    return import_module(f"danlu.builder.embedded.ops.{_MODULES[type(op).__name__]}")
