"""What the kernel tells of the machine and its processes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from danlu.sandbox.procfs import boot_time


def test_the_boot_time_is_that_of_the_kernel() -> None:
    uptime = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
    assert abs(datetime.now(UTC) - uptime - boot_time()) < timedelta(minutes=1)
