"""The functions of the build language.

A build function is one :class:`~danlu.lang.build_function.BuildFunction` in one module of this
package: its signature, its checks, the declaration that a call adds, and what that contributes to
the lock and the graph. Starlark's builtins, the Python functions, the reference page, the editor
stubs and the reading of lockfiles follow from :data:`FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from danlu.environment.lock_section import LockSection
from danlu.lang.build_function import BuildFunction
from danlu.lang.functions import (
    base,
    codex,
    conda,
    config,
    cuda,
    data,
    go,
    include,
    julia,
    nodejs,
    packages,
    r,
    rstudio,
    runtime,
    rust,
    sagemaker,
    steps,
    vscode,
)

__all__ = ["FUNCTIONS", "LOCK_SECTIONS", "NAMESPACES", "list_short_names"]

_MODULES = (
    base,
    steps,
    include,
    packages,
    conda,
    julia,
    rust,
    go,
    nodejs,
    codex,
    cuda,
    r,
    vscode,
    rstudio,
    config,
    sagemaker,
    runtime,
    data,
)

FUNCTIONS: Mapping[str, BuildFunction] = MappingProxyType(
    {function.name: function for module in _MODULES for function in module.FUNCTIONS}
)
"""All functions by full name (``base``, ``install.python``), in the reference page's order."""

NAMESPACES = ("install", "config", "io", "runtime", "data")

LOCK_SECTIONS: Mapping[str, LockSection[Any]] = MappingProxyType(
    {
        function.lock_section.name: function.lock_section
        for function in sorted(FUNCTIONS.values(), key=lambda function: function.name)
        if function.lock_section is not None
    }
)
"""The sections of the lock that functions own, by their name in the file."""


def list_short_names(namespace: str) -> list[str]:
    """Return the short names of a namespace's functions; of the plain ones for an empty name."""
    return [
        function.short_name for function in FUNCTIONS.values() if function.namespace == namespace
    ]
