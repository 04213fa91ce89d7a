"""What this machine has, and who uses it: measured when a page asks for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from danlu.diagnosis.doctor import DoctorCheck
from danlu.engine.gpu.usage import GpuMeter
from danlu.errors import DanluError
from danlu.image.manage import PruneReport, prune_images
from danlu.sandbox.procfs import find_namespace_members, measure_usage
from danlu.sandbox.types import ResourceUsage
from danlu.sources.downloads import cache_size
from danlu.store import Store, StoreUsage
from danlu.ui.commands import run_command
from danlu.util.decoding import decode_json
from danlu.util.paths import Paths

_SIZES_SECONDS = 60.0
_PASSED_CHECKS, _FAILED_CHECKS = 0, 4


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """The store by kinds of data, what ``danlu image prune --all`` would do, and the free space."""

    usage: StoreUsage
    downloads: int
    plan: PruneReport
    free: int


@dataclass
class MachineState:
    """The latest measurements, and the results of ``danlu doctor`` if the user asked for them."""

    meter: GpuMeter = field(default_factory=GpuMeter)
    checks: Sequence[DoctorCheck] = ()
    checked: datetime | None = None
    sizes: StoreSizes | None = None
    _is_checking: bool = False
    _sizes_time: float = float("-inf")
    _measuring: asyncio.Task[None] | None = None
    _samples: dict[int, tuple[float, ResourceUsage]] = field(default_factory=dict)

    async def run_checks(self, where: str) -> str:
        """Run the checks, and return a sentence about them."""
        if self._is_checking:
            return "the checks are running already"
        self._is_checking = True
        try:
            codes = _PASSED_CHECKS, _FAILED_CHECKS
            output = await run_command("doctor", "--format", "json", "--on", where, codes=codes)
        finally:
            self._is_checking = False
        self.checks = decode_json(output.encode(), tuple[DoctorCheck, ...])
        self.checked = datetime.now(UTC)
        failed = sum(not check.ok and not check.optional for check in self.checks)
        return f"{failed} of {len(self.checks)} checks failed" if failed else "all checks passed"

    def refresh_sizes(self, paths: Paths) -> None:
        """Measure the store in the background, at most once a minute: it may have many files."""
        is_running = self._measuring is not None and not self._measuring.done()
        if is_running or time.monotonic() - self._sizes_time < _SIZES_SECONDS:
            return

        async def measure() -> None:
            with suppress(DanluError):  # the checks say what is wrong with the store
                self.sizes = await asyncio.to_thread(_measure_store, paths)
            self._sizes_time = time.monotonic()

        self._measuring = asyncio.create_task(measure())

    def measure_container(self, process: int) -> tuple[float | None, int]:
        """Return the cores since the last call (None at first) and the memory of a container."""
        members = find_namespace_members(process)
        usage, now = measure_usage(members) or ResourceUsage(0, 0), time.monotonic()
        earlier = self._samples.get(process)
        self._samples[process] = now, usage
        if earlier is None or now <= earlier[0]:
            return None, usage.memory
        return max(0.0, (usage.cpu - earlier[1].cpu) / (now - earlier[0])), usage.memory


def _measure_store(paths: Paths) -> StoreSizes | None:
    if not paths.store.is_dir():
        return None
    with Store.open(paths.store) as store:
        usage, plan = store.usage(), prune_images(store, paths, 0, dry_run=True)
    return StoreSizes(usage, cache_size(paths.cache), plan, shutil.disk_usage(paths.store).free)


def read_memory() -> tuple[int, int]:
    """Return the bytes of memory that are available for programs, and those of the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    values = {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (line.partition(":") for line in lines)
    }
    return values.get("MemAvailable", 0), values.get("MemTotal", 0)


def read_load() -> float:
    """Return how many processes ran or waited for a core, on average over the last minute."""
    return os.getloadavg()[0]
