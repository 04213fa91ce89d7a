"""Compare this machine's NVIDIA driver with the CUDA that an environment is built for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from danlu.errors import MachineError
from danlu.graph.progress import Message, Progress
from danlu.sandbox.nvidia_driver import read_driver

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.environment.cuda_compatibility import CudaConflict
    from danlu.environment.runtime_settings import RuntimeSettings

#: Where ``proc`` is mounted.
ROOT = Path("/")


def check_driver(
    project: Project, progress: Progress, *, required: bool, root: Path | None = None
) -> None:
    """Warn if the driver is too old for the project's locked packages.

    Without a driver nothing is checked: the environment runs on the CPU. Raises
    :class:`MachineError` instead of the warning if GPUs are ``required``. ``root`` is where
    ``proc`` is mounted.
    """
    conflict = find_conflict(project.lock_path, project.function, root=root or ROOT)
    if conflict is None:
        return
    if required:
        raise MachineError(conflict.message, hint=conflict.hint)
    progress(Message(f"warning: {conflict.message}; {conflict.hint}", 0.0))


def warn_about_gpus(runtime: RuntimeSettings, progress: Progress) -> None:
    """Warn that the GPUs which the build file asks for are missing."""
    if runtime.gpus:
        text = f"warning: config.gpu({runtime.gpus}): no GPU support yet, running on the CPU"
        progress(Message(text, 0.0))


def find_conflict(lock_path: Path, function: str, *, root: Path) -> CudaConflict | None:
    """Return why the driver does not run what a lockfile has for ``function`` (empty: for any)."""
    driver = read_driver(root)
    if driver is None:
        return None
    # Most machines that build images have no driver, and need none of this.
    from danlu.environment.cuda_compatibility import find_driver_conflict
    from danlu.resolve.lockfile import read_lock

    try:
        text = lock_path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    for name, locked in read_lock(text, lock_path.name).functions.items():
        if function in ("", name):
            conflict = find_driver_conflict(driver.version, locked.packages)
            if conflict is not None:
                return conflict
    return None
