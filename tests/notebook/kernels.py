"""Kernels in processes of their own, spoken to by messages as a front end does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from danlu.notebook.kernelspec import environment_base

__all__ = ["CellOutcome", "json_blocks", "run", "run_alone", "run_and_read_stdout", "running"]


@dataclass(frozen=True)
class CellOutcome:
    """The content of a cell's reply, and the texts of its streams."""

    reply: dict[str, Any]
    out: str
    err: str


def run_alone(tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """Have Jupyter, IPython and danlu see only files below ``tmp``; yields the prefix to fill."""
    prefix = tmp / "prefix"
    patch.setenv("JUPYTER_PATH", str(environment_base(prefix)))
    patch.setenv("JUPYTER_DATA_DIR", str(tmp / "data"))
    patch.setenv("JUPYTER_CONFIG_DIR", str(tmp / "config"))
    patch.setenv("JUPYTER_RUNTIME_DIR", str(tmp / "runtime"))
    patch.setenv("IPYTHONDIR", str(tmp / "ipython"))
    patch.setenv("DANLU_HOME", str(tmp / "danlu"))
    return prefix


@contextmanager
def running(name: str, **options: Any) -> Iterator[BlockingKernelClient]:
    """The kernel ``name`` while it is needed; ``options`` are those of ``start_kernel``."""
    manager, client = start_new_kernel(kernel_name=name, **options)
    try:
        yield client
    finally:
        client.stop_channels()
        # Not immediately: a kernel may have to shut down kernels that it started.
        manager.shutdown_kernel()
        manager.cleanup_resources()


def run(client: BlockingKernelClient, code: str, *, seconds: float = 60) -> CellOutcome:
    """Run a cell."""
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            texts[message["content"]["name"]].append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hook, timeout=seconds)
    return CellOutcome(reply["content"], "".join(texts["stdout"]), "".join(texts["stderr"]))


def wait_for_reply(client: BlockingKernelClient, request: str) -> dict[str, Any]:
    """Return the content of the reply to a request, given by its message ID.

    Replies to earlier requests can come first: a client asks a kernel repeatedly if it is ready.
    """
    while True:
        message = client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            content: dict[str, Any] = message["content"]
            return content


def run_and_read_stdout(client: BlockingKernelClient, code: str) -> str:
    """Run a cell and return its stdout; fail the test if the cell fails."""
    result = run(client, code)
    assert result.reply["status"] == "ok", result
    return result.out.strip()


def json_blocks(page: Path) -> list[dict[str, Any]]:
    """Return the parsed JSON blocks of a documentation page."""
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.S)]
