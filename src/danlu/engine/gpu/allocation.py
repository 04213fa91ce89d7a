"""Which GPUs of this machine a selection gets, so that jobs and environments share none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from danlu.engine.gpu.provider import find_hidden_gpus, list_gpu_choices, provide_gpus
from danlu.engine.gpu.selection import (
    GpuChoice,
    GpuSelection,
    choose_gpus,
    limit_to_visible,
    parse_gpus,
)
from danlu.engine.resource_allocator import ResourceAllocator, ledger_file
from danlu.engine.supervisor_directory import SupervisorDirectory
from danlu.errors import MachineError
from danlu.graph.progress import Message, Progress
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import ContainerEdits
from danlu.util.config import Configuration
from danlu.util.locks import file_lock


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
    the driver does not list the GPUs (WSL 2), the selection is returned unchanged.

    Raises :class:`MachineError` if too few GPUs are free.
    """
    choices = list_gpu_choices(Path(config.gpu_driver_root))
    present = _list_indexes(limit_to_visible(choices, environ))
    if selection.count > len(present) or not (selection and choices):
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


@contextmanager
def hold_gpus(
    gpus: str,
    layers: Sequence[Path],
    config: Configuration,
    *,
    work: Path,
    uid: int,
    share: bool,
    variables: Mapping[str, str],
    progress: Progress,
) -> Iterator[ContainerEdits]:
    """Yield what GPUs need in a container of an image's layers, and keep them meanwhile.

    Raises :class:`MachineError` if this machine does not have them, or too few are free.

    Args:
        gpus: As for ``--gpus``.
        work: A directory of this process.
        uid: The user id of this process outside of namespaces.
        share: As for :func:`allocate_gpus`.
        variables: Those of the container.
    """
    owner = SupervisorDirectory(work / "gpus")
    allocator = ResourceAllocator(ledger_file(uid), owner.directory)
    with file_lock(owner.lock):
        selection, warning = allocate_gpus(parse_gpus(gpus), allocator, config, share=share)
        edits = provide_gpus(selection, LayerView(layers), config)
        for text in filter(None, (warning, find_hidden_gpus(edits, variables))):
            progress(Message(f"warning: {text}", 0.0))
        yield edits


def _list_indexes(choices: Sequence[GpuChoice]) -> list[int]:
    return [int(choice.names[0]) for choice in choices]
