"""The environment while it is being read: what was declared so far, and where."""

from __future__ import annotations

from typing import Any

from danlu.environment.types import (
    Environ,
    IncludeUse,
    Other,
    PythonPackages,
    Step,
    SystemPackages,
)
from danlu.lang.finding import Finding

__all__ = ["Draft"]


class Draft:
    """Declarations in the order of the file; single-valued ones by their function's name."""

    def __init__(self) -> None:
        self.one: dict[str, Any] = {}
        self.system_packages: list[SystemPackages] = []
        self.python_packages: list[PythonPackages] = []
        self.environ: list[Environ] = []
        self.steps: list[Step] = []
        self.others: list[Other] = []
        self.includes: list[IncludeUse] = []

    def set(self, function: str, value: Any) -> None:
        """Declare a single-valued thing; a second one must be equal."""
        before = self.one.setdefault(function, value)
        if before != value:
            raise Finding(
                f"{function}() is declared twice, with other values",
                hint=f"the first is at {before.span}; keep one of them",
            )

    def other(self, other: Other, *, single: bool = False) -> None:
        """Add a planned call; a ``single`` one once."""
        if single:
            first = other.function not in self.one
            self.set(other.function, other)
            if not first:
                return
        self.others.append(other)

    def include(self, use: IncludeUse) -> None:
        """Note a repository once, however often it is included."""
        if use not in self.includes:
            self.includes.append(use)
