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

__all__ = ["Told", "alone", "json_blocks", "run", "running", "shown"]


@dataclass(frozen=True)
class Told:
    """How a cell ended: its reply's content, and the texts of its streams."""

    reply: dict[str, Any]
    out: str
    err: str


def alone(tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """Have Jupyter, IPython and danlu see only what is below ``tmp``; gives the prefix to fill."""
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


def run(client: BlockingKernelClient, code: str, *, seconds: float = 60) -> Told:
    """Run a cell."""
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            texts[message["content"]["name"]].append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hook, timeout=seconds)
    return Told(reply["content"], "".join(texts["stdout"]), "".join(texts["stderr"]))


def shown(client: BlockingKernelClient, code: str) -> str:
    """What a cell prints; its failure fails the test."""
    told = run(client, code)
    assert told.reply["status"] == "ok", told
    return told.out.strip()


def json_blocks(page: Path) -> list[dict[str, Any]]:
    """What the blocks of JSON in a page of the documentation say."""
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.S)]
