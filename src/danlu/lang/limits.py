"""How much an evaluation of a ``build.envd`` may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of an evaluation (not counting what it waits for) and bytes it may hold."""

    seconds: float = 10.0
    memory: int = 1 << 30
