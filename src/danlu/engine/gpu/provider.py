"""Give a container GPUs: through CDI, the runtime's own way, or the driver's files directly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from danlu.engine.gpu.cdi import count_cdi_gpus, read_cdi_devices, select_cdi_edits
from danlu.engine.gpu.driver_mounts import build_driver_edits, has_wsl_driver
from danlu.engine.gpu.selection import GpuChoice, GpuSelection, limit_to_visible
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.nvidia_driver import find_proc_root, list_gpus, read_driver
from danlu.sandbox.types import ContainerEdits
from danlu.util.config import Configuration

#: A runtime that adds the GPUs itself, of NVIDIA's toolkit.
_NVIDIA_RUNTIME = "nvidia-container-runtime"


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
    devices = read_cdi_devices(_list_spec_directories(config))
    if devices:
        return select_cdi_edits(selection, devices, list_gpus(find_proc_root(root)), environ)
    if Path(config.runtime).name.startswith(_NVIDIA_RUNTIME):
        return ContainerEdits(
            environment={
                "NVIDIA_VISIBLE_DEVICES": _format_selection(selection),
                "NVIDIA_DRIVER_CAPABILITIES": "all",
            }
        )
    return build_driver_edits(selection, view, root, environ)


def count_gpus(config: Configuration, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many GPUs containers can get on this machine; None if only the driver knows.

    Raises :class:`~danlu.errors.MachineError` if a CDI spec is invalid.
    """
    root = Path(config.gpu_driver_root)
    gpus = list_gpus(find_proc_root(root))
    devices = read_cdi_devices(_list_spec_directories(config))
    if devices:
        return len(limit_to_visible(count_cdi_gpus(devices, gpus), environ))
    if read_driver(find_proc_root(root)) is None:
        return None if has_wsl_driver(root) else 0
    choices = [GpuChoice((str(gpu.index), gpu.uuid)) for gpu in gpus]
    return len(limit_to_visible(choices, environ))


def describe_gpu_access(config: Configuration) -> str:
    """Return how containers get the GPUs of this machine, for ``danlu doctor``.

    Raises :class:`~danlu.errors.MachineError` if they cannot have them.
    """
    edits = provide_gpus(GpuSelection(every=True), LayerView(()), config, {})
    devices = read_cdi_devices(_list_spec_directories(config))
    if devices:
        files = sorted({str(device.file) for device in devices.values()})
        return f"as {' and '.join(files)} describes (CDI)"
    if not edits.devices:
        return f"by {config.runtime}"
    libraries = sum(".so" in mount.target for mount in edits.mounts)
    return f"{len(edits.devices)} device nodes and {libraries} libraries of the driver"


def _list_spec_directories(config: Configuration) -> list[Path]:
    return [Path(path) for path in config.cdi_spec_dirs.split(":") if path]


def _format_selection(selection: GpuSelection) -> str:
    if selection.every:
        return "all"
    return ",".join(selection.names or map(str, range(selection.count)))
