"""The NVIDIA driver of this machine, as its kernel module describes it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_PROC = "proc/driver/nvidia"

# "NVIDIA UNIX x86_64 Kernel Module  535.183.01", or "… Open Kernel Module for x86_64  580.65.06".
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)\b")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


class NvidiaDriver(msgspec.Struct, frozen=True):
    """A driver's version (``535.183.01``) and the models of its devices."""

    version: str
    devices: tuple[str, ...] = ()


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
    return NvidiaDriver(match[1], tuple(_read_model(path) for path in _list_devices(root)))


def _list_devices(root: Path) -> list[Path]:
    return sorted((root / _PROC / "gpus").glob("*/information"))


def _read_model(path: Path) -> str:
    try:
        match = _MODEL.search(path.read_text(errors="replace"))
    except OSError:
        match = None
    return match[1] if match else "unknown device"
