"""Compare this machine's NVIDIA driver and processor with what an environment is built for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from danlu.errors import MachineError
from danlu.graph.image_config import parse_image_config
from danlu.graph.progress import Message, Progress
from danlu.sandbox.nvidia_driver import find_proc_root, read_driver
from danlu.sandbox.processor import require_image_processor
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.environment.cuda_compatibility import CudaConflict
    from danlu.project.project import Project
    from danlu.util.config import Configuration


def check_driver(
    project: Project, progress: Progress, *, required: bool, config: Configuration
) -> None:
    """Warn if the driver is too old for the project's locked packages.

    Without a driver nothing is checked: the environment runs on the CPU. Raises
    :class:`MachineError` instead of the warning if GPUs are ``required``.
    """
    conflict = find_conflict(project.lock_path, project.function, config=config)
    if conflict is not None:
        _report_conflict(conflict, progress, required=required)


def check_image_driver(
    image: bytes, progress: Progress, *, required: bool, config: Configuration
) -> None:
    """Warn if the driver is too old for what an image says that it needs.

    ``image`` is its configuration; without a driver nothing is checked. Raises
    :class:`MachineError` instead of the warning if GPUs are ``required``.
    """
    driver = read_driver(find_proc_root(Path(config.gpu_driver_root)))
    if driver is None:
        return
    from danlu.environment.cuda_compatibility import find_image_conflict

    variables = dict(parse_image_config(image).environment)
    conflict = find_image_conflict(driver.version, variables)
    if conflict is not None:
        _report_conflict(conflict, progress, required=required)


def check_stored_image(
    digest: str, settings: Settings, progress: Progress, *, uses_gpus: bool, required: bool
) -> None:
    """Check that this machine's processor, and its driver if it ``uses_gpus``, run an image.

    An image that the store lacks is not checked. Raises :class:`MachineError` for the processor,
    and for the driver if GPUs are ``required``.
    """
    with Store.open(settings.paths.store) as store:
        require_image_processor(store, digest)
        image = store.image(digest) if uses_gpus else None
    if image is not None:
        check_image_driver(image.config, progress, required=required, config=settings.config)


def _report_conflict(conflict: CudaConflict, progress: Progress, *, required: bool) -> None:
    if required:
        raise MachineError(conflict.message, hint=conflict.hint)
    progress(Message(f"warning: {conflict.message}; {conflict.hint}", 0.0))


def find_conflict(lock_path: Path, function: str, *, config: Configuration) -> CudaConflict | None:
    """Return why the driver does not run what a lockfile has for ``function`` (empty: for any)."""
    driver = read_driver(find_proc_root(Path(config.gpu_driver_root)))
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
