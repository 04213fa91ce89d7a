"""A simulated NVIDIA driver: files of this machine under the driver's names."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from pathlib import Path

from danlu.sandbox.ld_cache import CachedLibrary, native_flags, render_cache

VERSION = "580.65.06"
LIBRARY_DIRECTORY = f"usr/lib/{platform.machine()}-linux-gnu"
_VERSION_TEXT = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x@y)\n"
)
#: Libraries, and the links that an installed driver has.
_LIBRARIES = {
    "libcuda": ("libcuda.so.1", "libcuda.so"),
    "libnvidia-ml": ("libnvidia-ml.so.1",),
    "libnvidia-ptxjitcompiler": ("libnvidia-ptxjitcompiler.so.1",),
    "libEGL_nvidia": ("libEGL_nvidia.so.0",),
    "libnvidia-glcore": (),
    "vdpau/libvdpau_nvidia": ("vdpau/libvdpau_nvidia.so.1",),
}


def find_system_library() -> Path:
    """Return a small library of this machine that needs nothing but the C library."""
    for name in ("libutil.so.1", "libdl.so.2"):
        for directory in (LIBRARY_DIRECTORY, "usr/lib64"):
            path = Path("/") / directory / name
            if path.exists():
                return path.resolve()
    raise AssertionError("this machine has no glibc")


def make_driver(root: Path, *, gpus: int = 2, version: str = VERSION, nodes: bool = True) -> Path:
    """Create the files of a driver with ``gpus`` GPUs; see :func:`make_nodes`."""
    proc = root / "proc/driver/nvidia"
    for index in range(gpus):
        # In the order of the bus, minors are the other way round.
        directory = proc / f"gpus/0000:0{index + 1}:00.0"
        directory.mkdir(parents=True)
        (directory / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 54\n"
            f"GPU UUID: \t GPU-{index}{index}a1b2c3-0000-4000-8000-000000000000\n"
            f"Device Minor: \t {gpus - 1 - index}\nGPU Excluded:\t No\n"
        )
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "version").write_text(_VERSION_TEXT.format(version))
    _make_libraries(root, version)
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        program = root / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} of {version}\n")
        program.chmod(0o755)
    firmware = root / f"lib/firmware/nvidia/{version}"
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").write_bytes(b"firmware")
    if nodes:
        make_nodes(root, *(f"nvidia{index}" for index in range(gpus)))
        make_nodes(root, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    return root


def _make_libraries(root: Path, version: str) -> None:
    directory = root / LIBRARY_DIRECTORY
    directory.mkdir(parents=True)
    for name, links in _LIBRARIES.items():
        target = directory / f"{name}.so.{version}"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(find_system_library(), target)
        for link in links:
            (directory / link).symlink_to(target.name)
            target = directory / link
    path = f"/{LIBRARY_DIRECTORY}/libcuda.so.1"
    cache = root / "etc/ld.so.cache"
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(render_cache([CachedLibrary("libcuda.so.1", path, native_flags())]))


def make_nodes(root: Path, *names: str) -> None:
    """Create device nodes that read like /dev/zero, open to all; without root, links to it."""
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0 and not os.statvfs(path.parent).f_flag & os.ST_NODEV:
            os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))
            path.chmod(0o666)
        else:
            path.symlink_to("/dev/zero")


def make_amd_driver(root: Path, *, gpus: int = 2) -> Path:
    """Create the files and nodes of AMD's driver with a processor and ``gpus`` GPUs."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number in range(gpus + 1):
        node = nodes / str(number)
        node.mkdir(parents=True)
        minor = 127 + number if number else 0
        (node / "gpu_id").write_text(f"{1000 * number}\n")
        (node / "name").write_text("aqua_vanjaram\n" if number else "\n")
        (node / "properties").write_text(
            f"cpu_cores_count {0 if number else 96}\nsimd_count {number * 1216}\n"
            f"drm_render_minor {minor}\nunique_id {0xA0 + number}\n"
        )
        if number:
            device = root / f"sys/class/drm/renderD{minor}/device"
            device.mkdir(parents=True)
            (device / "gpu_busy_percent").write_text(f"{number}7\n")
            (device / "mem_info_vram_used").write_text(f"{number << 30}\n")
            (device / "mem_info_vram_total").write_text(f"{192 << 30}\n")
            make_nodes(root, f"dri/renderD{minor}")
    process = root / "sys/class/kfd/kfd/proc/4711"
    process.mkdir(parents=True)
    (process / "vram_2000").write_text(f"{3 << 20}\n")
    make_nodes(root, "kfd")
    return root
