"""Which GPUs of this machine a selection gets, so that jobs and environments share none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from danlu.engine.gpu.selection import GpuChoice, GpuSelection, choose_gpus, limit_to_visible
from danlu.engine.resource_allocator import ResourceAllocator
from danlu.errors import MachineError
from danlu.sandbox.nvidia_driver import find_proc_root, list_gpus
from danlu.util.config import Configuration


def allocate_gpus(
    selection: GpuSelection,
    allocator: ResourceAllocator,
    config: Configuration,
    *,
    share: bool,
    environ: Mapping[str, str] = os.environ,
) -> tuple[GpuSelection, str]:
    """Return the selection with the GPUs that ``allocator``'s owner gets, and a warning or nothing.

    A number of GPUs becomes the indexes of free ones; with ``share`` a warning names who else has
    them if too few are free. GPUs that the user named are recorded only, as they may be shared. If
    the driver does not list the GPUs (WSL 2), the selection is returned as it is.

    Raises :class:`MachineError` if too few GPUs are free.
    """
    gpus = list_gpus(find_proc_root(Path(config.gpu_driver_root)))
    choices = [GpuChoice((str(gpu.index), gpu.uuid)) for gpu in gpus]
    present = _list_indexes(limit_to_visible(choices, environ))
    if selection.count > len(present) or not (selection and gpus):
        # Choosing among the GPUs of the machine reports the error.
        return selection, ""
    if not selection.count:
        with suppress(MachineError):  # a MIG instance, or one that does not exist
            allocator.record_gpus(_list_indexes(choose_gpus(selection, choices, environ)))
        return selection, ""
    chosen = allocator.claim_gpus(selection.count, present, share=share)
    users = " and ".join(allocator.list_other_users(present if chosen is None else chosen))
    if chosen is None:
        raise MachineError(
            f"--gpus {selection.count}: too few GPUs are free, because of {users}",
            hint="stop it, or share GPUs by naming them, such as --gpus device=0",
        )
    names = tuple(map(str, chosen))
    warning = f"GPU {', '.join(names)} is shared with {users}" if users else ""
    return GpuSelection(names=names), warning


def _list_indexes(choices: Sequence[GpuChoice]) -> list[int]:
    return [int(choice.names[0]) for choice in choices]
