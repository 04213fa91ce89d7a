"""Serve a fake Kubernetes API until interrupted: ``python -m tests.fakes.kubernetes``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from tests.fakes.kubernetes.server import FakeKubernetes


async def _serve_forever(port: int) -> None:
    async with FakeKubernetes(port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(parser.parse_args().port))
