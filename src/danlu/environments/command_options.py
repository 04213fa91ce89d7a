"""The options of ``danlu run``, in any engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from danlu.graph.progress import Message

if TYPE_CHECKING:
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.graph.progress import Progress


@dataclass(frozen=True)
class CommandOptions:
    """The user's options for one command; unset ones keep the build file's settings.

    Attributes:
        image: A local image; empty for the project's environment.
        volumes: ``SRC:DST[:ro]``.
        environment: ``K=V``, or ``K`` for this process's value.
        gpus: ``all``, ``none``, a number of GPUs, or their indexes and UUIDs.
        security: ``seccomp=PROFILE``; only in danlu's own engine.
        terminal: Whether the command gets our terminal, instead of our input and output.
        is_program: Whether it is a program even if the build file names such a command.
        shm_size: The size of ``/dev/shm``.
        skip_init: Whether to leave out ``runtime.init``.
        allow_mounts: Whether included repositories may mount files of this machine.
    """

    image: str = ""
    volumes: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    gpus: str = ""
    user: str = ""
    security: tuple[str, ...] = ()
    terminal: bool = False
    offline: bool = False
    frozen: bool = False
    is_program: bool = False
    shm_size: str = ""
    skip_init: bool = False
    allow_mounts: bool = False


def report_skipped_settings(runtime: RuntimeSettings, progress: Progress) -> None:
    """Print a hint with the settings of the build file that ``danlu run`` ignores."""
    skipped = [
        name
        for name, wanted in (
            ("config.jupyter", runtime.jupyter),
            ("runtime.daemon", runtime.daemons),
            ("runtime.expose", runtime.ports),
        )
        if wanted
    ]
    if skipped:
        names = ", ".join(skipped)
        progress(Message(f"note: `danlu run` does not apply {names}; use `danlu up`", 0.0))
