"""Wheels under way before those who ask for them are loaded.

What a lock names and the store lacks is known as soon as the graph is. The rest of the builder
takes as long to import as uv needs for a small wheel, and neither waits for the other.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from danlu.errors import DanluError
from danlu.graph import Wheel
from danlu.sources.pypi.installing import Attempt, Install, plan_install, requirement_line
from danlu.sources.pypi.uv import Uv

__all__ = ["Ahead", "begun"]


class Ahead:
    """Wheels that uv is installing below a prefix."""

    def __init__(
        self,
        wheels: Sequence[Wheel],
        planned: Install,
        process: subprocess.Popen[bytes],
        messages: IO[bytes],
    ) -> None:
        self._wheels = tuple(wheels)
        self._planned = planned
        self._process = process
        self._messages = messages

    async def take(self, wheels: Sequence[Wheel]) -> Attempt | None:
        """What came of it, once it has ended; None where it is not about exactly ``wheels``.

        The prefix is the caller's to take apart, so it is given once.
        """
        if self._wheels != tuple(wheels):
            return None
        import anyio.to_thread

        self._wheels = ()
        # Who is cancelled leaves `begun` next, where the process is killed.
        code = await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self._messages.seek(0)
        return self._planned.ended(code, self._messages.read().decode(errors="replace"))


@contextmanager
def begun(uv: Uv, wheels: Sequence[Wheel], workspace: Path) -> Iterator[Ahead | None]:
    """Begin to install ``wheels`` of indexes, of one scheme; killed at the end if still at it.

    ``workspace`` is an empty directory on the store's file system. None where it cannot even be
    begun: whoever does it then can tell why.
    """
    lines = [requirement_line(one, None) for one in wheels]
    # In memory: what uv has to say may be that the disk is full.
    with open(os.memfd_create("uv"), "w+b") as messages:
        try:
            planned = plan_install(uv, wheels, lines, workspace / "prefix")
            process = planned.call.start(messages)
        except (DanluError, OSError):
            yield None
            return
        try:
            yield Ahead(wheels, planned, process, messages)
        finally:
            process.kill()
            process.wait()
