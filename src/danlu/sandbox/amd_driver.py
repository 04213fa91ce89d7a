"""The AMD GPUs of this machine, as the kernel's driver for computing (KFD) describes them.

Sources: ``Documentation/ABI/testing/sysfs-class-kfd`` and ``drivers/gpu/drm/amd/amdkfd`` of Linux.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_MAX_FILE = 64 << 10


class AmdGpu(msgspec.Struct, frozen=True):
    """A GPU: its index as ``rocm-smi`` counts, its UUID, and ``minor`` of ``renderDMINOR``.

    Attributes:
        identifier: The driver's number of it, which names its files.
        model: Such as ``AMD Instinct MI300X``.
    """

    index: int
    uuid: str
    minor: int
    identifier: int
    model: str


class AmdMemory(msgspec.Struct, frozen=True):
    """What a GPU's sysfs files say: ``utilization`` 0 to 1 or None, and bytes."""

    utilization: float | None
    used: int
    total: int


def find_sys_root(driver_root: Path) -> Path:
    """Return where ``sys`` of the driver is mounted."""
    return driver_root if (driver_root / _TOPOLOGY).is_dir() else Path("/")


def list_amd_gpus(root: Path = Path("/")) -> tuple[AmdGpu, ...]:
    """Return the GPUs in the driver's order. ``root`` is where ``sys`` is mounted."""
    gpus: list[AmdGpu] = []
    nodes = [path for path in (root / _TOPOLOGY).glob("*") if path.name.isdecimal()]
    for node in sorted(nodes, key=lambda path: int(path.name)):
        identifier = _read_number(node / "gpu_id")
        properties = _read_properties(node / "properties")
        minor = properties.get("drm_render_minor", 0)
        if not identifier or not minor:  # a processor
            continue
        unique = properties.get("unique_id", 0)
        device = _find_device(root, minor)
        model = _read_text(device / "product_name") or _read_text(node / "name")
        uuid = f"GPU-{unique:016x}" if unique else ""
        gpus.append(AmdGpu(len(gpus), uuid, minor, identifier, model or "AMD GPU"))
    return tuple(gpus)


def measure_amd_gpu(gpu: AmdGpu, root: Path = Path("/")) -> AmdMemory:
    """Return how busy a GPU is and its memory; zeros where the driver does not say."""
    device = _find_device(root, gpu.minor)
    busy = _read_text(device / "gpu_busy_percent")
    return AmdMemory(
        int(busy) / 100 if busy.isdecimal() else None,
        _read_number(device / "mem_info_vram_used"),
        _read_number(device / "mem_info_vram_total"),
    )


def list_amd_processes(gpu: AmdGpu, root: Path = Path("/")) -> Mapping[int, int]:
    """Return the bytes of each process on a GPU by its id."""
    paths = (root / _PROCESSES).glob(f"*/vram_{gpu.identifier}")
    used = {path.parent.name: _read_number(path) for path in paths}
    return {int(name): size for name, size in used.items() if name.isdecimal() and size}


def _find_device(root: Path, minor: int) -> Path:
    return root / f"sys/class/drm/renderD{minor}/device"


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_FILE).strip()
    except OSError:
        return ""


def _read_number(path: Path) -> int:
    text = _read_text(path)
    return int(text) if text.isdecimal() else 0


def _read_properties(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.partition(" ") for line in _read_text(path).splitlines())
    return {name: int(value) for name, _, value in pairs if value.strip().isdecimal()}
