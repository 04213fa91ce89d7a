"""Wait for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until ``holds`` returns True; the test's time limit ends it."""
    while not holds():
        time.sleep(0.02)
