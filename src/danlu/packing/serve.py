"""Serve a packed model in the foreground: run the server that its image has."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.environments.command_options import CommandOptions
from danlu.environments.run import run_command
from danlu.packing.serve_image import require_server

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.graph.progress import Progress
    from danlu.packing.serve_options import ServeOptions


def serve_model(name: str, options: ServeOptions, *, settings: Settings, progress: Progress) -> int:
    """Run the server of a packed image until it ends or is interrupted; return its exit code.

    The container sees no directory of this machine. Raises :class:`UsageError` if the image has no
    server, and what running it raises.
    """
    require_server(name, settings)
    with tempfile.TemporaryDirectory(prefix="danlu-serve-") as empty:
        return run_command(
            Path(empty),
            options.command,
            CommandOptions(image=name, gpus=options.gpus, is_program=True),
            settings=settings,
            progress=progress,
        )
