"""A real API server with etcd, and the resource usage of its processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.transport import ApiRequest
from tests.kube.servers import TOKEN, binaries, real_server

__all__ = ["Requests", "ServerExperiment", "bench", "read_access", "requests_of", "version"]

Requests = Counter[tuple[str, str]]
"""Requests by verb and resource (with its subresource), as the server counts them."""

_TOTAL = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class ServerExperiment:
    """The server of one experiment and its processes by name, whose usage is measured."""

    directory: Path
    access: ClusterConfig
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a process that logs to a file next to the server's."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def role(self, name: str, *arguments: str) -> None:
        """Start a client of the server (:mod:`benchmarks.kubernetes.roles`)."""
        config = str(self.directory / "access.json")
        self.start(
            name, sys.executable, "-m", "benchmarks.kubernetes.roles", name, config, *arguments
        )

    def operator(self, port: int) -> None:
        """Start the operator, with its health probe at a local port.

        If DANLU_BENCH_PROFILE is set, its profile is written to that file.
        """
        profile = os.environ.get("DANLU_BENCH_PROFILE")
        measured = ("-m", "cProfile", "-o", profile) if profile else ()
        self.start(
            "operator",
            *(sys.executable, *measured, "-m", "danlu", "operator", "run"),
            f"--kubeconfig={self.directory / 'kubeconfig'}",
            "--metrics-bind-address=",
            f"--health-probe-bind-address=127.0.0.1:{port}",
        )

    def wait(self, name: str) -> None:
        """Wait for a process to end; raise if it failed."""
        process = self.processes[name]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.spent[name] = usage.ru_utime + usage.ru_stime
        self.peaks[name] = usage.ru_maxrss * 1024.0
        if process.returncode:
            log = (self.directory / f"{name}.log").read_text(errors="replace")
            raise RuntimeError(f"{name} gave {process.returncode}:\n{log[-3000:]}")

    def stop(self, name: str) -> None:
        """Terminate a process and record its usage."""
        process = self.processes[name]
        self.cpu()
        self.peak(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"{name} did not exit within 20 seconds of SIGTERM") from None

    def check(self) -> None:
        """Raise :class:`RuntimeError` if a process has exited."""
        for name, process in self.processes.items():
            if process.poll() is not None and name not in self.spent:
                log = (self.directory / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{log[-3000:]}")

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each process so far; this one is ``driver``."""
        for name, process in self.processes.items():
            if process.returncode is None:
                self.spent[name] = _read_cpu_seconds(process.pid)
        times = os.times()
        return {**self.spent, "driver": times.user + times.system}

    def peak(self, name: str) -> float:
        """Return the peak memory of a process in bytes."""
        if self.processes[name].returncode is None:
            status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            assert found is not None
            self.peaks[name] = float(found[1]) * 1024
        return self.peaks[name]


def _read_cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def bench(directory: Path) -> Iterator[ServerExperiment]:
    """Start a fresh server, without controllers, because ownership does not matter here."""
    directory.mkdir(parents=True)
    with real_server(directory, controllers=False) as server:
        made = ServerExperiment(directory, server.access, dict(server.processes))
        wanted = {"server": server.access.server, "ca": server.access.ca.decode()}
        (directory / "access.json").write_text(json.dumps(wanted))
        (directory / "kubeconfig").write_text(_render_kubeconfig(directory, server.access))
        ours = set(made.processes)
        try:
            yield made
        finally:
            for name in made.processes.keys() - ours:
                if made.processes[name].poll() is None:
                    made.stop(name)


def _render_kubeconfig(directory: Path, access: ClusterConfig) -> str:
    (directory / "ca.crt").write_bytes(access.ca)
    return f"""\
apiVersion: v1
kind: Config
current-context: one
clusters:
- {{name: one, cluster: {{server: "{access.server}", certificate-authority: "{directory}/ca.crt"}}}}
users: [{{name: one, user: {{token: {TOKEN}}}}}]
contexts: [{{name: one, context: {{cluster: one, user: one}}}}]
"""


def read_access(path: Path) -> ClusterConfig:
    """Return the configuration with which a role reaches the server."""
    values = json.loads(path.read_text())
    return ClusterConfig(
        server=values["server"],
        ca=values["ca"].encode(),
        credentials=StaticCredentials(token=TOKEN),
    )


async def requests_of(client: Client) -> Requests:
    """Return the number of requests so far."""
    text = (await client.transport.send(ApiRequest(method="GET", path="/metrics"))).decode()
    found: Requests = Counter()
    for labels, number in _TOTAL.findall(text):
        values = dict(_LABEL.findall(labels))
        resource = "/".join(filter(None, (values["resource"], values["subresource"])))
        found[values["verb"], resource] += int(float(number))
    return found


def version() -> str:
    """Return the version of the API server."""
    found = binaries()
    if found is None:
        raise SystemExit("benchmarks.operator needs kube-apiserver and etcd (KUBEBUILDER_ASSETS)")
    shown = subprocess.check_output([found / "kube-apiserver", "--version"], text=True)
    return shown.split()[-1]
