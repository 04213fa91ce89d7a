"""Serve a packed model in the foreground: run the server that its image has."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.engine.registry import find_engine
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
        if find_engine(settings.engine).features.runs_programs:
            from danlu.environments.run import run_command

            return run_command(
                Path(empty),
                settings=settings,
                args=options.command,
                progress=progress,
                image=name,
                gpus=options.gpus,
                is_program=True,
            )
        from danlu.environments.run_once import run_once
        from danlu.environments.spec import UpOptions

        return run_once(
            Path(empty),
            settings=settings,
            args=options.command,
            options=UpOptions(gpus=options.gpus),
            progress=progress,
            image=name,
            is_program=True,
        )
