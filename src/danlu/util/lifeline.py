"""Child processes that the kernel ends with us, whatever ends us."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache

__all__ = ["dies_with_us"]


@cache
def _setpriv() -> str | None:
    return shutil.which("setpriv")


def dies_with_us(args: Sequence[str]) -> list[str]:
    """``args``, killed by the kernel when the thread that started it dies (prctl(2), PDEATHSIG)."""
    wrapper = _setpriv()
    return [wrapper, "--pdeathsig", "KILL", "--", *args] if wrapper else list(args)
