"""GPU usage, measured through a library that answers as NVIDIA's does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.gpu.usage import GpuMeter

#: Two GPUs, of which the second does not measure its utilization, as with MIG. Structures and
#: error codes are those of nvml.h.
_LIBRARY = r"""
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
static long gpus[2];
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    if (index > 1) return 2;
    *gpu = &gpus[index];
    return 0;
}
int nvmlDeviceGetName(void *gpu, char *name, unsigned size) {
    const char *text = "H100";
    while ((*name++ = *text++));
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *memory) {
    *memory = (struct memory){80, 50, 30};
    return 0;
}
int nvmlDeviceGetPersistenceMode(void *gpu, int *mode) { *mode = gpu == gpus; return 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, struct rates *rates) {
    if (gpu != gpus) return 3;
    *rates = (struct rates){97, 12};
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *found) {
    if (gpu != gpus) return *count = 0;
    if (!found) { *count = 1; return 7; }
    *count = 1;
    *found = (struct process){4711, 20, 0, 0};
    return 0;
}
"""


@pytest.mark.real
@pytest.mark.needs("tcc")
def test_gpus_and_their_processes_are_measured(tmp_path: Path) -> None:
    source, driver = tmp_path / "nvml.c", tmp_path / "version"
    source.write_text(_LIBRARY)
    driver.touch()
    library = str(tmp_path / "libnvidia-ml.so.1")
    command = ["tcc", "-w", "-shared", "-nostdlib", "-o", library, str(source)]
    subprocess.run(command, check=True)
    script = (
        "import json, sys, pathlib, msgspec\n"
        "from danlu.engine.gpu.usage import GpuMeter\n"
        "meter = GpuMeter(pathlib.Path(sys.argv[1]))\n"
        "found = [meter.measure(), meter.measure([1]), meter.measure([5])]\n"
        "found.append(meter.has_persistence())\n"
        "print(json.dumps(msgspec.to_builtins(found, str_keys=True)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(driver)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    first = {
        "index": 0,
        "model": "H100",
        "utilization": 0.97,
        "memory": 30,
        "total": 80,
        "processes": {"4711": 20},
    }
    second = {**first, "index": 1, "utilization": None, "processes": {}}
    assert json.loads(done.stdout) == [[first, second], [second], [], False]


def test_nothing_is_loaded_without_a_driver(tmp_path: Path) -> None:
    meter = GpuMeter(tmp_path / "missing", tmp_path)
    assert meter.measure() == []
    assert meter.has_persistence() is None
