"""The kernel behind Jupyter Enterprise Gateway, and started by a Gateway Provisioner."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from danlu.notebook.kernelspec import environment_base, install_kernel
from tests.conftest import ROOT
from tests.notebook.conftest import JupyterEnv
from tests.notebook.environments import NotSatisfiable, resolve
from tests.notebook.gateways import GatewayKernel, run_server, start_kernel
from tests.notebook.kernels import json_blocks, run_alone
from tests.ports import free_port

pytestmark = pytest.mark.notebook

GUIDE = ROOT / "docs/guides/kernels.md"

#: Neither gateway starts kernels for root, even if it runs as root itself.
USER = {"KERNEL_USERNAME": "someone"}


@contextmanager
def serve_enterprise_gateway(place: Path, env: Path) -> Iterator[str]:
    """Enterprise Gateway in an environment without danlu, with the kernel of this environment."""
    port = free_port()
    command = (env / "bin/jupyter-enterprisegateway", "--ip=127.0.0.1", f"--port={port}")
    url = f"http://127.0.0.1:{port}"
    with run_server((*command, "--port_retries=0"), url, place=place, environment={}):
        yield url


@contextmanager
def start_gateway(place: Path, env: Path) -> Iterator[str]:
    """A Kernel Gateway whose kernels the distributed provisioner starts, here on this host.

    After any kernel's end, ipykernel's own too, the provisioner waits 30 s for its listener.
    """
    port = free_port()
    command = (
        env / "bin/jupyter-kernelgateway",
        "--KernelGatewayApp.ip=127.0.0.1",
        f"--KernelGatewayApp.port={port}",
        "--KernelGatewayApp.port_retries=0",
    )
    variables = {
        "PATH": f"{env / 'bin'}:{os.environ['PATH']}",  # its kernelspec says only `python`
        "GP_KERNEL_LOG_DIR": str(place),
        "GP_RESPONSE_IP": "127.0.0.1",
        "GP_RESPONSE_PORT": str(free_port()),
    }
    url = f"http://127.0.0.1:{port}"
    with run_server(command, url, place=place, environment=variables):
        yield url


async def check_kernel(url: str) -> None:
    """A cell runs, another is interrupted, a third runs in the same kernel, which then ends."""
    async with start_kernel(url, "danlu", USER) as kernel:
        result = await kernel.run("print(get_ipython().kernel.implementation, 6 * 7)")
        assert result == ("ok", "danlu 42")
        assert await _read_interrupt_status(kernel) == "KeyboardInterrupt"
        assert await kernel.run("import os; print(os.environ['KERNEL_USERNAME'])") == (
            "ok",
            USER["KERNEL_USERNAME"],
        )
        status, pid = await kernel.run("import os; print(os.getpid())")
    await _wait_until_gone(int(pid))
    assert status == "ok"


async def _read_interrupt_status(kernel: GatewayKernel) -> str:
    status = ""
    cell = await kernel.begin("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    async for message in kernel.messages_of(cell):
        if message["msg_type"] == "stream":
            await kernel.interrupt()
        if message["msg_type"] == "execute_reply":
            status = message["content"].get("ename", message["content"]["status"])
    return status


async def _wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.05)


def test_enterprise_gateway_runs_cells_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jupyter_env: JupyterEnv
) -> None:
    install_kernel(environment_base(run_alone(tmp_path, monkeypatch)))
    env = jupyter_env("enterprise-gateway", ("jupyter_enterprise_gateway",))
    with serve_enterprise_gateway(tmp_path, env) as url:
        asyncio.run(check_kernel(url))


def test_gateway_provisioner_starts_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jupyter_env: JupyterEnv
) -> None:
    expected = ("danlu[notebook]", "gateway_provisioners", "jupyter_kernel_gateway")
    env = jupyter_env("gateway-provisioners", expected)
    prefix = run_alone(tmp_path, monkeypatch)
    specify = (
        f"--prefix={prefix}",
        "--kernel-name=danlu",
        "--display-name=danlu",
        "--remote-hosts=localhost",
        "--spark-init-mode=none",
        "--ipykernel-subclass-name=danlu.notebook.kernel.DanluKernel",
    )
    program = env / "bin/jupyter-ssh-spec"
    subprocess.run([program, "install", *specify], check=True, capture_output=True)
    text = (environment_base(prefix) / "kernels/danlu/kernel.json").read_text()
    assert json.loads(text.replace(str(prefix), "/opt/danlu")) == json_blocks(GUIDE)[1]
    with start_gateway(tmp_path, env) as url:
        asyncio.run(check_kernel(url))


def test_enterprise_gateway_conflicts_with_current_ipykernel() -> None:
    """If this fails, update docs/guides/kernels.md, which shows this error."""
    with pytest.raises(NotSatisfiable) as caught:
        resolve("ipykernel>=7", "jupyter_enterprise_gateway>=3")
    text = " ".join(str(caught.value).split())
    assert "jupyter-client>=8" in text
    assert "jupyter-enterprise-gateway" in text
