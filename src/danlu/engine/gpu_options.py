"""Which GPUs an environment gets: ``--gpus``, or else ``config.gpu`` of the build file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.graph.progress import Message, Progress

if TYPE_CHECKING:
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.util.config import Configuration


def decide_gpus(
    given: str, runtime: RuntimeSettings, config: Configuration, progress: Progress
) -> str:
    """Return a valid value of ``--gpus``, empty for none.

    ``given`` is the user's value, which must be satisfied. If the machine has fewer GPUs than the
    build file declares, those are used, and a warning names the difference. Raises
    :class:`~danlu.errors.UsageError` if ``given`` is invalid, and
    :class:`~danlu.errors.MachineError` if the machine has no GPU at all.
    """
    if not given and not runtime.gpus:
        return ""
    # Most environments are started without GPUs, and need none of this.
    from danlu.engine.gpu.driver_mounts import missing_gpu_error
    from danlu.engine.gpu.provider import count_gpus
    from danlu.engine.gpu.selection import parse_gpus

    if given:
        if not parse_gpus(given):
            return ""
        # Before anything is built for it, or removed.
        if count_gpus(config, {}) == 0:
            raise missing_gpu_error()
        return given
    wanted = runtime.gpus or 0
    available = count_gpus(config)
    if available is None or available >= wanted:
        return str(wanted)
    has = f"has {available}" if available else "has none (`danlu doctor` shows the driver)"
    result = f"starting with {available}" if available else "running on the CPU"
    progress(Message(f"warning: config.gpu({wanted}): this machine {has}; {result}", 0.0))
    return str(available or "")
