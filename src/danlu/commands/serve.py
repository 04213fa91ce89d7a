"""Serve a packed model: run the server that its image has."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.commands.image.manage import find_image
from danlu.commands.packed_runs import read_file
from danlu.engine.environment_directory import EMBEDDED_ENGINE, KUBERNETES_ENGINE
from danlu.errors import UsageError
from danlu.sandbox import userns
from danlu.serving import layout
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.graph.progress import Progress


class ServeOptions(msgspec.Struct, frozen=True):
    """The options of ``danlu serve``; ``timeout`` is in seconds, ``max_batch`` in rows."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    timeout: float = 60.0
    max_batch: int = 32
    gpus: str = ""
    grpc_port: int | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """The server's command line in the image."""
        grpc = () if self.grpc_port is None else ("--grpc-port", str(self.grpc_port))
        return (
            *(layout.SERVE, "--host", self.host, "--port", str(self.port)),
            *("--workers", str(self.workers), "--timeout", f"{self.timeout:g}"),
            *("--max-batch", str(self.max_batch)),
            *grpc,
        )


def serve_model(name: str, options: ServeOptions, *, settings: Settings, progress: Progress) -> int:
    """Run the server of a packed image until it ends or is interrupted; return its exit code.

    The container sees no directory of this machine. Raises :class:`UsageError` if the image has no
    server, and what running it raises.
    """
    if settings.engine == KUBERNETES_ENGINE:
        raise UsageError(
            f"{settings.context}: serving on a cluster is not supported",
            hint=f"push the image and deploy it with the command `{layout.SERVE}`, port 8080",
        )
    _require_server(name, settings)
    with tempfile.TemporaryDirectory(prefix="danlu-serve-") as empty:
        if settings.engine == EMBEDDED_ENGINE:
            from danlu.commands.run import run_command

            return run_command(
                Path(empty),
                settings=settings,
                args=options.command,
                progress=progress,
                image=name,
                gpus=options.gpus,
                is_program=True,
            )
        from danlu.commands.environments.run_once import run_once
        from danlu.commands.environments.spec import UpOptions

        return run_once(
            Path(empty),
            settings=settings,
            args=options.command,
            options=UpOptions(gpus=options.gpus),
            progress=progress,
            image=name,
            is_program=True,
        )


def _require_server(name: str, settings: Settings) -> None:
    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store, store.lease():
        image = find_image(store, name)
        if read_file(store, image, layout.ORIGIN, 1) is None:
            raise UsageError(
                f"{name} is not a packed model", hint="`danlu pack` makes images to serve"
            )
        if read_file(store, image, layout.SERVE, 1) is None:
            raise UsageError(
                f"{name} has no model server",
                hint="pack it again without --no-server; the server needs NumPy (--keep numpy)",
            )
