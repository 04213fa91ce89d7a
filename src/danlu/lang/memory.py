"""How much memory this process holds."""

from __future__ import annotations

import os
import resource

__all__ = ["Memory"]


class Memory:
    """The memory that this process holds; the peak, where the present is not told."""

    def __init__(self) -> None:
        self._page = resource.getpagesize()
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    def __del__(self) -> None:
        if self._statm is not None:
            os.close(self._statm)

    def held(self) -> int:
        """Return the bytes."""
        if self._statm is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(os.pread(self._statm, 200, 0).split()[1]) * self._page
