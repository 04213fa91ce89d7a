"""Give a container GPUs: from a CDI spec, NVIDIA's toolkit, or the driver's files directly.

A machine has NVIDIA's GPUs or AMD's; with both, AMD's are not used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from danlu.engine.gpu.amd import build_amd_edits, list_amd_choices
from danlu.engine.gpu.cdi import (
    CdiDevice,
    count_cdi_gpus,
    read_cdi_devices,
    select_cdi_edits,
)
from danlu.engine.gpu.driver_mounts import build_driver_edits, has_wsl_driver
from danlu.engine.gpu.selection import GPU_NODE, GpuChoice, GpuSelection, limit_to_visible
from danlu.engine.gpu.toolkit import find_toolkit, generate_cdi_devices
from danlu.errors import MachineError
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.nvidia_driver import find_proc_root, list_gpus, read_driver
from danlu.sandbox.types import ContainerEdits
from danlu.util.config import Configuration

#: Variables that make CUDA or ROCm see only some GPUs.
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def provide_gpus(
    selection: GpuSelection,
    view: LayerView,
    config: Configuration,
    environ: Mapping[str, str] = os.environ,
) -> ContainerEdits:
    """Return what the selected GPUs need in a container of the image ``view``.

    Raises :class:`~danlu.errors.MachineError` if this machine does not have them, or its CDI spec
    or driver is damaged.
    """
    if not selection:
        return ContainerEdits()
    root = Path(config.gpu_driver_root)
    devices = _describe_devices(config)
    if devices:
        return select_cdi_edits(selection, devices, list_gpus(find_proc_root(root)), environ)
    if read_driver(find_proc_root(root)) is None and list_amd_choices(root):
        return build_amd_edits(selection, root, environ)
    return build_driver_edits(selection, view, root, environ)


def count_gpus(config: Configuration, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many GPUs containers can get on this machine; None if only the driver knows.

    Raises :class:`~danlu.errors.MachineError` if a CDI spec is invalid.
    """
    root = Path(config.gpu_driver_root)
    gpus = list_gpus(find_proc_root(root))
    driver = read_driver(find_proc_root(root))
    # Only on a machine without the usual files is the toolkit needed to count.
    devices = (
        read_cdi_devices(_list_spec_directories(config)) if driver else _describe_devices(config)
    )
    if devices:
        return len(limit_to_visible(count_cdi_gpus(devices, gpus), environ))
    if driver is None and has_wsl_driver(root):
        return None
    return len(limit_to_visible(list_gpu_choices(root), environ))


def list_gpu_choices(root: Path) -> list[GpuChoice]:
    """Return the GPUs that the driver in ``root`` lists: NVIDIA's, or else AMD's."""
    gpus = list_gpus(find_proc_root(root))
    choices = [GpuChoice((str(gpu.index), gpu.uuid)) for gpu in gpus]
    return choices or list_amd_choices(root)


def describe_gpu_access(config: Configuration) -> str:
    """Return how containers get the GPUs of this machine, for ``danlu doctor``.

    Raises :class:`~danlu.errors.MachineError` if they cannot have them.
    """
    edits = provide_gpus(GpuSelection(every=True), LayerView(()), config, {})
    devices = _describe_devices(config)
    if devices:
        files = sorted({str(device.file) for device in devices.values()})
        return f"as {' and '.join(files)} describes (CDI)"
    libraries = sum(".so" in mount.target for mount in edits.mounts)
    if not libraries:
        return f"{len(edits.devices)} device nodes; the image has the libraries (ROCm)"
    return f"{len(edits.devices)} device nodes and {libraries} libraries of the driver"


def find_hidden_gpus(edits: ContainerEdits, environment: Mapping[str, str]) -> str:
    """Return a warning if a variable of a container hides some of its GPUs from programs, or none.

    ``environment`` are the image's and the user's variables.
    """
    nodes = sum(bool(GPU_NODE.fullmatch(node.path)) for node in edits.devices)
    for name in _HIDING:
        listed = [word for word in environment.get(name, "").split(",") if word.strip() != "-1"]
        seen = len(list(filter(str.strip, listed)))
        if name in environment and seen < nodes:
            hidden = f"{name}={environment[name]} hides the others"
            return f"programs see {seen} of {nodes} GPUs: {hidden}"
    return ""


def _list_spec_directories(config: Configuration) -> list[Path]:
    return [Path(path) for path in config.cdi_spec_dirs.split(":") if path]


def _describe_devices(config: Configuration) -> dict[str, CdiDevice]:
    """Return the devices of specs, or else of NVIDIA's toolkit; none if there are neither."""
    devices = read_cdi_devices(_list_spec_directories(config))
    program = None if devices else find_toolkit()
    if program is None:
        return devices
    root = Path(config.gpu_driver_root)
    try:
        return generate_cdi_devices(program, root)
    except MachineError:
        # Such as one that is older than CDI, next to a driver whose files suffice.
        if read_driver(find_proc_root(root)) is None:
            raise
        return {}
