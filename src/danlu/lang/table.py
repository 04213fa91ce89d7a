"""The one table of the build language's functions.

Starlark's builtins, the Python functions, the reference page, the editor stubs and the
validation are all made from it, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from danlu.lang.entries import config, data, install, io, runtime, universe
from danlu.lang.entries.data import PATHS
from danlu.lang.function import REQUIRED, Function, Parameter

__all__ = ["NAMESPACES", "PATHS", "REQUIRED", "TABLE", "Function", "Parameter", "names_in"]

TABLE: Mapping[str, Function] = MappingProxyType(
    {
        function.name: function
        for module in (universe, install, config, io, runtime, data)
        for function in module.FUNCTIONS
    }
)
"""All functions by full name (``base``, ``install.python``), in the reference page's order."""

NAMESPACES = ("install", "config", "io", "runtime", "data")


def names_in(namespace: str) -> list[str]:
    """Return the short names of a namespace's functions; of the plain ones for an empty name."""
    return [function.short_name for function in TABLE.values() if function.namespace == namespace]
