"""Give a container AMD GPUs: their device nodes. The libraries (ROCm) are those of the image.

The nodes are those that AMD documents for containers: ``/dev/kfd`` and a render node for each GPU
(https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from danlu.engine.gpu.selection import GpuChoice, GpuSelection, choose_gpus
from danlu.errors import MachineError
from danlu.sandbox import userns
from danlu.sandbox.amd_driver import find_sys_root, list_amd_gpus
from danlu.sandbox.types import ContainerEdits, DeviceNode

_SHARED_NODE = "kfd"


def list_amd_choices(root: Path) -> list[GpuChoice]:
    """Return the AMD GPUs; ``root`` is where the driver is installed."""
    gpus = list_amd_gpus(find_sys_root(root))
    return [GpuChoice(tuple(filter(None, (str(gpu.index), gpu.uuid)))) for gpu in gpus]


def build_amd_edits(
    selection: GpuSelection, root: Path, environ: Mapping[str, str]
) -> ContainerEdits:
    """Return what the selected GPUs need in a container.

    Raises :class:`MachineError` if one does not exist, or a node cannot be opened.
    """
    choices = list_amd_choices(root)
    picked = {choice.names[0] for choice in choose_gpus(selection, choices, environ)}
    chosen = [gpu for gpu in list_amd_gpus(find_sys_root(root)) if str(gpu.index) in picked]
    dev = root / "dev" if (root / "dev" / _SHARED_NODE).exists() else Path("/dev")
    names = (_SHARED_NODE, *(f"dri/renderD{gpu.minor}" for gpu in chosen))
    groups = {_check_node(dev / name) for name in names}
    return ContainerEdits(
        devices=tuple(DeviceNode(f"/dev/{name}", dev / name) for name in names),
        # So that a user of the image other than root may open the nodes, too.
        groups=() if _is_rootless() else tuple(sorted(groups)),
    )


def _check_node(path: Path) -> int:
    """Return the group of a device node that this user can open, in a container also."""
    try:
        status = path.stat()
    except OSError:
        status = None
    if status is None or not stat.S_ISCHR(status.st_mode):
        raise MachineError(
            f"{path} does not exist", hint="load AMD's driver for computing: `sudo modprobe amdgpu`"
        )
    if _is_rootless() and status.st_mode & 0o006 != 0o006:
        raise MachineError(
            f"{path} is open only to its group, which a container without root does not keep",
            hint="open it to all with a rule of udev, such as"
            ' `SUBSYSTEM=="kfd", MODE="0666"` and `KERNEL=="renderD*", MODE="0666"`, or use root',
        )
    return status.st_gid


def _is_rootless() -> bool:
    return os.geteuid() != 0 or userns.is_rootless()
