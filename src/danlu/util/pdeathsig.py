"""Child processes that the kernel kills when their parent dies."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache

#: The arguments of ``setpriv`` before the program: PR_SET_PDEATHSIG.
SETPRIV_OPTIONS = ("--pdeathsig", "KILL", "--")


@cache
def _find_setpriv() -> str | None:
    return shutil.which("setpriv")


def with_parent_death_signal(args: Sequence[str]) -> list[str]:
    """Return ``args`` wrapped so that the program is killed when the thread that started it dies.

    See prctl(2), PR_SET_PDEATHSIG. Without the ``setpriv`` program ``args`` is returned unchanged.
    """
    wrapper = _find_setpriv()
    return [wrapper, *SETPRIV_OPTIONS, *args] if wrapper else list(args)
