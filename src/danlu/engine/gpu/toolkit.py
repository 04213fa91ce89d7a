"""GPUs as NVIDIA's container toolkit describes them, if it is installed.

Its ``nvidia-container-runtime`` changes a container at ``create`` only, and danlu's containers are
started with ``run``, so its other program is asked, which describes the same: ``nvidia-ctk cdi
generate`` prints a CDI spec.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from danlu.engine.gpu.cdi import CdiDevice, parse_cdi_devices
from danlu.errors import MachineError
from danlu.sandbox.types import SYSTEM_PATH

_PROGRAM = "nvidia-ctk"
_TIMEOUT = 60


def find_toolkit() -> Path | None:
    """Return the path of ``nvidia-ctk``, or None."""
    path = shutil.which(_PROGRAM, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    return None if path is None else Path(path)


def generate_cdi_devices(program: Path, driver_root: Path) -> dict[str, CdiDevice]:
    """Return the devices that ``nvidia-ctk`` describes, by name.

    Raises :class:`MachineError` if it fails or prints an invalid spec.
    """
    command = [str(program), "cdi", "generate", "--format=json"]
    if driver_root != Path("/"):
        command.append(f"--driver-root={driver_root}")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").splitlines() or ["it printed no error"]
        raise MachineError(f"{program} cdi generate failed: {lines[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{program} cdi generate failed: {error}") from error
    return {device.name: device for device in parse_cdi_devices(program, done.stdout)}
