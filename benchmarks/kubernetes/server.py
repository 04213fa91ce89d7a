"""A real API server with etcd, and what it and other processes have taken and done."""

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

__all__ = ["Bench", "Requests", "bench", "read_access", "requests_of", "version"]

Requests = Counter[tuple[str, str]]
"""Requests by verb and resource (with its subresource), as the server counts them."""

_TOTAL = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Bench:
    """A server of one experiment and its processes by name, each of them measured."""

    directory: Path
    access: ClusterConfig
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """A process of ours, whose output goes to a file beside the server's."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def role(self, name: str, *arguments: str) -> None:
        """One of those who load the server (:mod:`benchmarks.kubernetes.roles`)."""
        config = str(self.directory / "access.json")
        self.start(
            name, sys.executable, "-m", "benchmarks.kubernetes.roles", name, config, *arguments
        )

    def operator(self, port: int) -> None:
        """The operator as one starts it, healthy at that port of this machine.

        Its profile goes to the file that DANLU_BENCH_PROFILE names.
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
        """Wait for a process that ends by itself; raises where it failed."""
        process = self.processes[name]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.spent[name] = usage.ru_utime + usage.ru_stime
        self.peaks[name] = usage.ru_maxrss * 1024.0
        if process.returncode:
            log = (self.directory / f"{name}.log").read_text(errors="replace")
            raise RuntimeError(f"{name} gave {process.returncode}:\n{log[-3000:]}")

    def stop(self, name: str) -> None:
        """End a process of ours."""
        process = self.processes[name]
        self.cpu()
        self.peak(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"{name} did not end within 20 seconds of SIGTERM") from None

    def check(self) -> None:
        """Raise where one of them is no longer there."""
        for name, process in self.processes.items():
            if process.poll() is not None and name not in self.spent:
                log = (self.directory / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{log[-3000:]}")

    def cpu(self) -> dict[str, float]:
        """CPU seconds that each has taken so far, and this process."""
        for name, process in self.processes.items():
            if process.returncode is None:
                self.spent[name] = _cpu(process.pid)
        times = os.times()
        return {**self.spent, "driver": times.user + times.system}

    def peak(self, name: str) -> float:
        """The most memory that a process has had, in bytes."""
        if self.processes[name].returncode is None:
            status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            assert found is not None
            self.peaks[name] = float(found[1]) * 1024
        return self.peaks[name]


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def bench(directory: Path) -> Iterator[Bench]:
    """A fresh server, without controllers: what owns what is nobody's business here."""
    directory.mkdir(parents=True)
    with real_server(directory, controllers=False) as server:
        made = Bench(directory, server.access, dict(server.processes))
        wanted = {"server": server.access.server, "ca": server.access.ca.decode()}
        (directory / "access.json").write_text(json.dumps(wanted))
        (directory / "kubeconfig").write_text(_kubeconfig(directory, server.access))
        ours = set(made.processes)
        try:
            yield made
        finally:
            for name in made.processes.keys() - ours:
                if made.processes[name].poll() is None:
                    made.stop(name)


def _kubeconfig(directory: Path, access: ClusterConfig) -> str:
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
    """How a role reaches the server of its experiment."""
    said = json.loads(path.read_text())
    return ClusterConfig(
        server=said["server"], ca=said["ca"].encode(), credentials=StaticCredentials(token=TOKEN)
    )


async def requests_of(client: Client) -> Requests:
    """What the server was asked so far."""
    text = (await client.transport.send(ApiRequest(method="GET", path="/metrics"))).decode()
    found: Requests = Counter()
    for labels, number in _TOTAL.findall(text):
        said = dict(_LABEL.findall(labels))
        resource = "/".join(filter(None, (said["resource"], said["subresource"])))
        found[said["verb"], resource] += int(float(number))
    return found


def version() -> str:
    """The server's, as it tells it."""
    found = binaries()
    if found is None:
        raise SystemExit("benchmarks.operator needs kube-apiserver and etcd (KUBEBUILDER_ASSETS)")
    said = subprocess.check_output([found / "kube-apiserver", "--version"], text=True)
    return said.split()[-1]
