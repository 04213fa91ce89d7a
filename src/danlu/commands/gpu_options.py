"""Which GPUs an environment gets: ``--gpus``, or else ``config.gpu`` of the build file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.graph.progress import Message, Progress
from danlu.sandbox.types import ContainerEdits
from danlu.util.locks import file_lock

if TYPE_CHECKING:
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.util.config import Configuration


def decide_gpus(
    given: str, runtime: RuntimeSettings, config: Configuration, progress: Progress
) -> str:
    """Return a valid value of ``--gpus``, empty for none.

    ``given`` is the user's value, which must be satisfied. If the machine has fewer GPUs than the
    build file declares, those are used, and a warning names the difference. Raises
    :class:`~danlu.errors.UsageError` if ``given`` is invalid.
    """
    if not given and not runtime.gpus:
        return ""
    # Most environments are started without GPUs, and need none of this.
    from danlu.engine.gpu.provider import count_gpus
    from danlu.engine.gpu.selection import parse_gpus

    if given:
        return given if parse_gpus(given) else ""
    wanted = runtime.gpus or 0
    available = count_gpus(config)
    if available is None or available >= wanted:
        return str(wanted)
    has = f"has {available}" if available else "has none (`danlu doctor` shows the driver)"
    result = f"starting with {available}" if available else "running on the CPU"
    progress(Message(f"warning: config.gpu({wanted}): this machine {has}; {result}", 0.0))
    return str(available or "")


@contextmanager
def hold_gpus(
    gpus: str,
    layers: Sequence[Path],
    config: Configuration,
    *,
    work: Path,
    uid: int,
    share: bool,
    progress: Progress,
) -> Iterator[ContainerEdits]:
    """Yield what GPUs need in a container of an image's layers, and keep them meanwhile.

    Raises :class:`~danlu.errors.MachineError` if this machine does not have them, or others do.

    Args:
        gpus: The result of :func:`decide_gpus`.
        work: A directory of this process.
        uid: The user id of this process outside of namespaces.
        share: Whether GPUs that others have may be used if too few are free.
    """
    if not gpus:
        yield ContainerEdits()
        return
    from danlu.engine.gpu.allocation import allocate_gpus
    from danlu.engine.gpu.provider import provide_gpus
    from danlu.engine.gpu.selection import parse_gpus
    from danlu.engine.resource_allocator import ResourceAllocator, ledger_file
    from danlu.engine.supervisor_directory import SupervisorDirectory
    from danlu.sandbox.layer_view import LayerView

    owner = SupervisorDirectory(work / "gpus")
    allocator = ResourceAllocator(ledger_file(uid), owner.directory)
    with file_lock(owner.lock):
        selection, warning = allocate_gpus(parse_gpus(gpus), allocator, config, share=share)
        if warning:
            progress(Message(f"warning: {warning}", 0.0))
        yield provide_gpus(selection, LayerView(layers), config)
