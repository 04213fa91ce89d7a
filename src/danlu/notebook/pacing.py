"""Output of programs at a pace that a notebook can take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Paced"]

#: So many characters are written as they come; of what is more, the end is kept.
_MOST, _KEPT = 512 << 10, 400


class Paced:
    """Writes lines together, now and then; of too many only the first and the last."""

    def __init__(self, write: Callable[[str], object], *, most: int = _MOST) -> None:
        self._write = write
        self._left = most
        self._waiting: list[str] = []
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._dropped = 0

    def line(self, text: str) -> None:
        """Take a line."""
        if self._left > 0:
            self._left -= len(text) + 1
            self._waiting.append(text)
            return
        self._dropped += len(self._last) == _KEPT
        self._last.append(text)

    def tick(self) -> None:
        """Write what waits."""
        lines, self._waiting = self._waiting, []
        if lines:
            self._write("\n".join(lines) + "\n")

    def end(self) -> None:
        """Write what was kept, and how much was not."""
        if self._dropped:
            self._waiting.append(f"… {self._dropped:,} lines are left out here …")
        self._waiting += self._last
        self._last.clear()
        self.tick()
