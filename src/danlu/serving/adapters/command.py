"""Any other server: a command line of the shell with HOST, PORT, WORKERS and MODEL_DIR."""

from __future__ import annotations

import os

import run  # type: ignore[import-not-found]
from packed import parse_options  # type: ignore[import-not-found]


def main(args: list[str]) -> None:
    """Replace this process by the command."""
    options = parse_options(args)
    os.environ.update(
        HOST=options.host,
        PORT=str(options.port),
        WORKERS=str(options.workers),
        MODEL_DIR=run.MODEL,
    )
    os.execv(
        "/bin/sh", ["/bin/sh", "-c", f"exec {run.read_json('server/command.json')['command']}"]
    )
