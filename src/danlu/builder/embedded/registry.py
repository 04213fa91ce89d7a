"""Which module does which op: one line an op."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from danlu.graph import Op
from danlu.store import Layer

__all__ = ["STEPS", "executor_of"]

Executor = Callable[[Any, Any], Awaitable[list[Layer]]]

_MODULES = {
    "AptInstall": "apt_install",
    "Bootstrap": "bootstrap",
    "CopyContext": "copy_context",
    "CopyImage": "copy_image",
    "Exec": "exec",
    "Files": "files",
    "HttpFile": "http_file",
    "Squash": "squash",
    "Wheel": "wheel",
}

#: Ops whose layer lies over their first input's stack and is keyed by its content.
STEPS = frozenset({"AptInstall", "Exec"})


def executor_of(op: Op) -> Executor:
    """The coroutine function that makes the layers of ``op``; modules load when first needed."""
    module = import_module(f"danlu.builder.embedded.ops.{_MODULES[type(op).__name__]}")
    executor: Executor = module.execute
    return executor
