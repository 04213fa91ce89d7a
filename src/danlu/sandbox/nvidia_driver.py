"""The NVIDIA driver and GPUs of this machine, as the kernel module describes them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_PROC = "proc/driver/nvidia"

# "NVIDIA UNIX x86_64 Kernel Module  535.183.01", or "… Open Kernel Module for x86_64  580.65.06".
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)\b")
_FIELD = re.compile(r"^([A-Z][A-Za-z ]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class NvidiaDriver(msgspec.Struct, frozen=True):
    """A driver's version (``535.183.01``) and the models of its devices."""

    version: str
    devices: tuple[str, ...] = ()


class NvidiaGpu(msgspec.Struct, frozen=True):
    """A GPU: its index as ``nvidia-smi`` counts, its UUID, and ``minor`` of ``/dev/nvidiaMINOR``.

    Attributes:
        model: Such as ``NVIDIA A100-SXM4-80GB``.
    """

    index: int
    uuid: str
    minor: int
    model: str


def find_proc_root(driver_root: Path) -> Path:
    """Return where ``proc`` of the driver is mounted: a driver's container may have its own."""
    return driver_root if (driver_root / _PROC).is_dir() else Path("/")


def read_driver(root: Path = Path("/")) -> NvidiaDriver | None:
    """Return the loaded driver, or None. ``root`` is where ``proc`` is mounted.

    Reads files only, because NVML would load the driver's library into this process.
    """
    try:
        match = _VERSION.search((root / _PROC / "version").read_text(errors="replace"))
    except OSError:
        return None
    if match is None:
        return None
    return NvidiaDriver(match[1], tuple(gpu.model for gpu in list_gpus(root)))


def list_gpus(root: Path = Path("/")) -> tuple[NvidiaGpu, ...]:
    """Return the GPUs in the order of their PCI bus ids, which is the order of ``nvidia-smi``.

    Excluded GPUs (an option of the driver) are left out. ``root`` is where ``proc`` is mounted.
    """
    gpus: list[NvidiaGpu] = []
    for path in sorted((root / _PROC / "gpus").glob("*/information")):
        try:
            fields = dict(_FIELD.findall(path.read_text(errors="replace")))
        except OSError:
            fields = {}
        if fields.get("GPU Excluded", "No") == "Yes":
            continue
        index = len(gpus)
        minor = fields.get("Device Minor", "")
        gpus.append(
            NvidiaGpu(
                index,
                fields.get("GPU UUID", ""),
                int(minor) if minor.isdecimal() else index,
                fields.get("Model") or "unknown device",
            )
        )
    return tuple(gpus)
