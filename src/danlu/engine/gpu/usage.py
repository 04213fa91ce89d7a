"""How busy GPUs are, as NVIDIA's management library (NVML) measures it, or AMD's driver."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from danlu.sandbox.amd_driver import (
    AmdGpu,
    list_amd_gpus,
    list_amd_processes,
    measure_amd_gpu,
)

_DRIVER = Path("/proc/driver/nvidia/version")


class GpuUsage(msgspec.Struct, frozen=True):
    """What a GPU does.

    Attributes:
        index: As ``nvidia-smi`` or ``rocm-smi`` counts.
        utilization: The share of the last second or less in which it computed, 0 to 1; None if
            the GPU does not measure it, as with MIG.
        memory: Bytes in use, of ``total``.
        processes: Bytes of each process, by its id on this machine; 0 if unknown.
    """

    index: int
    model: str
    utilization: float | None
    memory: int
    total: int
    processes: dict[int, int] = {}


class GpuMeter:
    """Measures GPUs; the driver's library is loaded at the first measurement and kept."""

    def __init__(self, driver: Path = _DRIVER, sys_root: Path = Path("/")) -> None:
        self._driver = driver
        self._sys_root = sys_root
        self._library: Any = None
        self._is_missing = False

    def measure(self, indexes: Sequence[int] | None = None) -> list[GpuUsage]:
        """Return the usage of GPUs, by default of all; none without a driver or its library."""
        library = self._load_library()
        if library is None:
            gpus = list_amd_gpus(self._sys_root)
            wanted = gpus if indexes is None else [gpu for gpu in gpus if gpu.index in indexes]
            return [_measure_amd_gpu(gpu, self._sys_root) for gpu in wanted]
        try:
            chosen = range(library.nvmlDeviceGetCount()) if indexes is None else indexes
            return [_measure_gpu(library, index) for index in chosen]
        except library.NVMLError:  # such as a GPU that fell off the bus
            return []

    def has_persistence(self) -> bool | None:
        """Return whether the driver keeps all GPUs initialized between programs; None if unknown.

        Without it each first program on a GPU waits seconds (NVIDIA's "Driver Persistence").
        """
        library = self._load_library()
        if library is None:
            return None
        try:
            handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
            return all(library.nvmlDeviceGetPersistenceMode(handle) == 1 for handle in handles)
        except library.NVMLError:
            return None

    def _load_library(self) -> Any:
        if self._library is not None or self._is_missing:
            return self._library
        # Most machines have no GPU, and do without the module.
        self._is_missing = not self._driver.exists()
        if self._is_missing:
            return None
        library: Any = importlib.import_module("pynvml")
        try:
            library.nvmlInit()
        except library.NVMLError:
            self._is_missing = True
        else:
            self._library = library
        return self._library


def _measure_gpu(library: Any, index: int) -> GpuUsage:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    utilization = None
    processes: dict[int, int] = {}
    # Not all GPUs and drivers support these two.
    with suppress(library.NVMLError):
        utilization = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with suppress(library.NVMLError):
        for process in library.nvmlDeviceGetComputeRunningProcesses(handle):
            processes[process.pid] = process.usedGpuMemory or 0
    name = library.nvmlDeviceGetName(handle)
    return GpuUsage(
        index,
        name.decode(errors="replace") if isinstance(name, bytes) else name,
        utilization,
        memory.used,
        memory.total,
        processes,
    )


def _measure_amd_gpu(gpu: AmdGpu, sys_root: Path) -> GpuUsage:
    memory = measure_amd_gpu(gpu, sys_root)
    return GpuUsage(
        gpu.index,
        gpu.model,
        memory.utilization,
        memory.used,
        memory.total,
        dict(list_amd_processes(gpu, sys_root)),
    )
