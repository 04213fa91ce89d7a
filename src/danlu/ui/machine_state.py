"""What this machine has, and who uses it: measured when a page asks for it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from danlu.diagnosis.doctor import DoctorCheck
from danlu.engine.gpu.usage import GpuMeter
from danlu.errors import DanluError
from danlu.image.manage import PruneReport, prune_images
from danlu.sandbox.procfs import find_namespace_members, measure_usage
from danlu.sandbox.types import ResourceUsage
from danlu.store import Store
from danlu.ui.commands import run_command
from danlu.util.decoding import decode_json
from danlu.util.paths import Paths

_STORE_SECONDS = 60.0
_PASSED_CHECKS, _FAILED_CHECKS = 0, 4


@dataclass
class MachineState:
    """The latest measurements, and the results of ``danlu doctor`` if the user asked for them.

    ``prunable`` is what ``danlu image prune --all`` would do, ``free`` the bytes of free space.
    """

    meter: GpuMeter = field(default_factory=GpuMeter)
    checks: Sequence[DoctorCheck] = ()
    checked: datetime | None = None
    prunable: PruneReport | None = None
    free: int = 0
    _measured: float = float("-inf")
    _task: asyncio.Task[None] | None = None
    _samples: dict[int, tuple[float, ResourceUsage]] = field(default_factory=dict)

    async def run_checks(self, where: str) -> str:
        """Run the checks for a context, and return a sentence about them."""
        words = "doctor", "--format", "json", "--on", where
        output = await run_command(*words, codes=(_PASSED_CHECKS, _FAILED_CHECKS))
        self.checks = decode_json(output.encode(), tuple[DoctorCheck, ...])
        self.checked = datetime.now(UTC)
        failed = sum(not check.ok and not check.optional for check in self.checks)
        return f"{failed} of {len(self.checks)} checks failed" if failed else "all checks passed"

    def refresh_store(self, paths: Paths) -> None:
        """Measure the store in the background, at most once a minute: it may have many files."""
        if paths.store.is_dir() and time.monotonic() - self._measured > _STORE_SECONDS:
            self._measured = time.monotonic()
            self._task = asyncio.create_task(asyncio.to_thread(self._measure_store, paths))

    def _measure_store(self, paths: Paths) -> None:
        # The checks say what is wrong with the store.
        with suppress(DanluError), Store.open(paths.store) as store:
            self.free = shutil.disk_usage(paths.store).free
            self.prunable = prune_images(store, paths, 0, dry_run=True)

    def measure_container(self, process: int) -> tuple[float | None, int]:
        """Return the cores since the last call (None at first) and the memory of a container."""
        usage = measure_usage(find_namespace_members(process)) or ResourceUsage(0, 0)
        now, earlier = time.monotonic(), self._samples.get(process)
        self._samples[process] = now, usage
        if earlier is None or now <= earlier[0]:
            return None, usage.memory
        return max(0.0, (usage.cpu - earlier[1].cpu) / (now - earlier[0])), usage.memory
