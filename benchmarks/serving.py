"""The model server, compared with others: ``python -m benchmarks.serving [--rounds 5]``.

BentoML, MLServer, LitServe and KServe's SDK come from PyPI, each into a virtual environment of its
own. Every server runs one worker with the same models, and is stopped (SIGSTOP) while another is
measured; the order changes in each round. Requests are made by wrk. CPU time is that of the
server's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.page import write
from tests.serving.servers import MODULES, ServerDirectory, install_packages

HERE = Path(__file__).resolve().parent
UV = Path(sys.executable).with_name("uv")
CONNECTIONS = (1, 8, 64)
SECONDS = 2
MOMENTS = 15
"""Turns of a second for the latency of a lone request, with and without batches."""
TIMEOUT = 120
UNBATCHED = "danlu, no batches"

#: ``no-op``: four numbers; ``digits``: an image of 8 × 8, by a network of 64, 128 and 10 in NumPy;
#: ``slow``: takes 5 ms, and 0.2 ms for each row.
MODELS = """
import time
import numpy as np

chance = np.random.default_rng(1)
first, second = chance.normal(size=(64, 128)), chance.normal(size=(128, 10))


def predict(x):
    x = np.asarray(x, np.float32)
    if x.shape[1] == 64:
        return np.maximum(x @ first, 0) @ second
    if x.shape[1] == 5:
        time.sleep(0.005 + 0.0002 * len(x))
    return x[:, :1]
"""
INPUTS = {"no-op": [0.5] * 4, "digits": [0.5] * 64, "slow": [0.5] * 5}
PREDICTOR = f"""{MODELS}
class Model:
    def load(self, directory):
        pass

    def predict(self, x: np.ndarray) -> np.ndarray:
        return predict(x)
"""
KSERVE = f"""{MODELS}
import sys
from kserve import InferOutput, InferResponse, Model, ModelServer


class Compared(Model):
    def __init__(self):
        super().__init__("m")
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        result = predict(payload.inputs[0].as_numpy())
        output = InferOutput("output", list(result.shape), "FP32")
        output.set_data_from_numpy(result.astype("float32"), binary_data=False)
        return InferResponse(payload.id or "1", "m", [output])


ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1, access_log_format=None).start(
    [Compared()]
)
"""
MLSERVER = f"""{MODELS}
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Compared(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        result = predict(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(
            model_name="m", outputs=[NumpyCodec.encode_output("output", result)]
        )
"""
BENTOML = f"""{MODELS}
import bentoml


@bentoml.service(workers=1, traffic={{"timeout": 60}})
class Compared:
    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return predict(x)
"""
LITSERVE = f"""{MODELS}
import sys
import litserve


class Compared(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["x"]

    def predict(self, x):
        return predict(x)

    def encode_response(self, output):
        return {{"output": output.tolist()}}


if __name__ == "__main__":
    server = litserve.LitServer(Compared(), accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
"""
#: Prints the requests, the errors, and the median of the latency in µs.
WRK = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = [==[%s]==]
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout + errors.status
  print("DONE", summary.requests, summary.duration, failed, latency:percentile(50))
end
"""


@dataclass(frozen=True)
class PeerServer:
    """Another server: its package, its files, its command (``PORT`` is replaced), and its path."""

    package: str
    files: Mapping[str, str]
    command: tuple[str, ...]
    path: str = "/v2/models/m/infer"


PEERS = {
    "BentoML": PeerServer(
        "bentoml",
        {"service.py": BENTOML},
        ("bentoml", "serve", "service:Compared", "--host", "127.0.0.1", "--port", "PORT"),
        "/predict",
    ),
    "MLServer": PeerServer(
        "mlserver",
        {
            "models.py": MLSERVER,
            "model-settings.json": '{"name": "m", "implementation": "models.Compared"}',
            "settings.json": '{"host": "127.0.0.1", "http_port": PORT, "grpc_port": FREE,'
            ' "metrics_port": FREE, "parallel_workers": 0, "debug": false}',
        },
        ("mlserver", "start", "."),
    ),
    "LitServe": PeerServer(
        "litserve", {"serve.py": LITSERVE}, ("python", "serve.py", "PORT"), "/predict"
    ),
    "KServe": PeerServer("kserve", {"serve.py": KSERVE}, ("python", "serve.py", "PORT")),
}


def find_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class MeasuredServer:
    """A server that runs, stopped but for :meth:`resume`."""

    def __init__(self, process: subprocess.Popen[Any], port: int, path: str) -> None:
        self.address = f"http://127.0.0.1:{port}{path}"
        self._process = process
        self._port = port
        self._path = path

    def wait_until_ready(self) -> None:
        """Wait until it answers a request."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            with contextlib.suppress(OSError, http.client.HTTPException):
                body = self.write_body("no-op")
                headers = {"content-type": "application/json"}
                connection.request("POST", self._path, body, headers)
                if connection.getresponse().status == 200:
                    return
            connection.close()
            time.sleep(0.2)
        raise RuntimeError(f"{self.address} does not answer")

    def write_body(self, model: str) -> str:
        """Return a request with one row for a model."""
        row = INPUTS[model]
        if self._path.startswith("/v2"):
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}
            return json.dumps({"inputs": [tensor]})
        return json.dumps({"x": [row]})

    def send_signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        for pid, _ in self._find_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextlib.contextmanager
    def resume(self) -> Iterator[None]:
        """Let it run until the end of the block."""
        self.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End all of its processes."""
        self.send_signal(signal.SIGKILL)
        self._process.wait()

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of its processes."""
        return sum(ticks for _, ticks in self._find_processes()) / os.sysconf("SC_CLK_TCK")

    def _find_processes(self) -> list[tuple[int, int]]:
        """Return the id and the CPU ticks of every process below its first (proc(5), ``stat``)."""
        found: dict[int, tuple[int, int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                found[int(stat.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        tree = [self._process.pid]
        for pid in tree:
            tree += [child for child, (parent, _) in found.items() if parent == pid]
        return [(pid, found[pid][1]) for pid in tree if pid in found]


@dataclass
class LoadResult:
    """What wrk measured; times in seconds."""

    requests: int
    rate: float
    median: float
    cpu: float


def measure_load(
    server: MeasuredServer, model: str, connections: int, script: Path, seconds: int = SECONDS
) -> LoadResult:
    """Send requests for some seconds, after one that is not counted if there are several."""
    script.write_text(WRK % server.write_body(model))
    command = ["wrk", "-t1", f"-c{connections}", "-s", str(script), "--timeout", "30"]
    with server.resume():
        if seconds > 1:
            subprocess.run([*command, "-d1", server.address], check=True, capture_output=True)
        before = server.read_cpu_seconds()
        done = subprocess.run(
            [*command, f"-d{seconds}", server.address], check=True, capture_output=True, text=True
        )
        cpu = server.read_cpu_seconds() - before
    found = re.search(r"DONE\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)", done.stdout)
    if not found or float(found[3]):
        raise RuntimeError(f"{server.address}: requests failed\n{done.stdout}")
    count = int(found[1])
    rate = count / (float(found[2]) / 1e6)
    return LoadResult(count, rate, float(found[4]) / 1e6, cpu / max(1, count))


@contextlib.contextmanager
def start_servers(directory: Path, names: Sequence[str]) -> Iterator[dict[str, MeasuredServer]]:
    """Install and start danlu's server, with and without batches, and the others."""
    servers: dict[str, MeasuredServer] = {}
    packages = install_packages(
        directory / "packages", requirements=(MODULES / "requirements.txt",)
    )
    ours = ServerDirectory(packages, directory / "danlu")
    ours.write(PREDICTOR, [[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("w"))

        def start(
            name: str, command: Sequence[str], place: Path, port: int, path: str, bin: Path
        ) -> None:
            environment = {
                "PATH": f"{bin}:/usr/bin:/bin", "HOME": str(place), "MODEL_NAME": "m",
                "BENTOML_DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            }  # fmt: skip
            process = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)
            server = servers[name] = MeasuredServer(process, port, path)
            stack.callback(server.kill)
            server.wait_until_ready()
            server.send_signal(signal.SIGSTOP)

        for name, options in (("danlu", ()), (UNBATCHED, ("--max-batch", "1"))):
            port = find_port()
            command = [sys.executable, "serve", "--host", "127.0.0.1", "--port", str(port)]
            path = "/v2/models/m/infer"
            start(name, [*command, *options], ours.place, port, path, Path(sys.executable).parent)
        for name in names:
            peer, place, port = PEERS[name], directory / name, find_port()
            subprocess.run([UV, "venv", "-q", place / "venv"], check=True)
            install = [UV, "pip", "install", "-q", "--python", place / "venv/bin/python"]
            subprocess.run([*install, peer.package, "numpy"], check=True)
            for file, text in peer.files.items():
                while "FREE" in text:
                    text = text.replace("FREE", str(find_port()), 1)
                if file.endswith(".json"):
                    text = text.replace("PORT", str(port))
                (place / file).write_text(text)
            words = [str(port) if word == "PORT" else word for word in peer.command]
            words[0] = str(place / "venv/bin" / words[0])
            start(name, words, place, port, peer.path, place / "venv/bin")
        yield servers


def measure_all(
    servers: Mapping[str, MeasuredServer], rounds: int, script: Path
) -> dict[tuple[str, int], dict[str, list[LoadResult]]]:
    """Measure every server in every round, in another order each time."""
    figures: dict[tuple[str, int], dict[str, list[LoadResult]]] = {}
    names = list(servers)
    for number in range(rounds):
        names = names[1:] + names[:1]
        for model, connections in (
            *((model, count) for model in ("no-op", "digits") for count in CONNECTIONS),
            ("slow", 32),
        ):
            row = figures.setdefault((model, connections), defaultdict(list))
            for name in names:
                if name == UNBATCHED or (model == "slow" and name != "danlu"):
                    continue
                row[name].append(measure_load(servers[name], model, connections, script))
                result = row[name][-1]
                print(
                    f"round {number + 1}: {name}, {model}, {connections}: {result.rate:.0f}/s,"
                    f" p50 {result.median * 1e3:.2f} ms, CPU {result.cpu * 1e6:.0f} µs",
                    file=sys.stderr,
                    flush=True,
                )
    lone = figures["lone", 1] = defaultdict(list)
    for _ in range(MOMENTS):
        for name in ("danlu", UNBATCHED):
            lone[name].append(measure_load(servers[name], "no-op", 1, script, 1))
    return figures


def _find_median(results: Sequence[LoadResult], field: str) -> float:
    return statistics.median(getattr(result, field) for result in results)


def _find_ratio(row: Mapping[str, Sequence[LoadResult]], one: str, other: str, field: str) -> float:
    """Return the median of the ratios in each round."""
    pairs = zip(row[one], row[other], strict=True)
    return statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs)


def describe_results(
    figures: Mapping[tuple[str, int], Mapping[str, Sequence[LoadResult]]], size: int
) -> str:
    """Return the tables and what was asked of them."""
    lines = ["Requests of one row; medians of all rounds.", ""]
    for field, title, scale, form in (
        ("rate", "requests per second", 1, ".0f"),
        ("median", "median latency, ms", 1e3, ".2f"),
        ("cpu", "CPU time of the server per request, µs", 1e6, ".0f"),
    ):
        rows = {key: row for key, row in figures.items() if key[0] in ("no-op", "digits")}
        names = sorted(next(iter(rows.values())), key=str.lower)
        lines += [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for (model, connections), row in rows.items():
            values = (format(_find_median(row[name], field) * scale, form) for name in names)
            lines.append(f"| {model}, {connections} connections | {' | '.join(values)} |")
        lines.append("")
    peers = [name for name in figures["no-op", 1] if name != "danlu"]
    lines += ["| asked | measured |", "|---|---|"]
    for connections in CONNECTIONS:
        row = figures["no-op", connections]
        best = max(peers, key=lambda name: _find_median(row[name], "rate"))
        ratio = _find_ratio(row, "danlu", best, "rate")
        lines.append(
            f"| ≥ 2 × the throughput of the best other, no-op, {connections} connections"
            f" | {ratio:.2f} × {best} |"
        )
    for (model, connections), row in figures.items():
        if "KServe" in row:
            ratio = _find_ratio(row, "danlu", "KServe", "cpu")
            lines.append(
                f"| ≤ ½ of KServe's CPU per request, {model}, {connections} connections"
                f" | {ratio:.2f} |"
            )
    ratio = _find_ratio(figures["lone", 1], "danlu", UNBATCHED, "median")
    lines.append(f"| median latency with batches within 5 % of without | {ratio:.3f} |")
    rate = _find_median(figures["slow", 32]["danlu"], "rate")
    lines += [
        f"| ≥ 90 % of the ideal, 32 clients, 5 ms + 0.2 ms per row, all in one call"
        f" | {rate * (5 + 0.2 * 32) / 32e3:.0%} |",
        f"| the same, half of the clients in each call | {rate * (5 + 0.2 * 16) / 16e3:.0%} |",
        f"| the server adds ≤ 30 MiB | {size / 2**20:.1f} MiB |",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("benchmarks: this needs wrk")
    machine = description({})
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        names = [name for name in options.peers.split(",") if name]
        with start_servers(directory, names) as servers:
            figures = measure_all(servers, options.rounds, directory / "wrk.lua")
        for name in names:
            (found,) = (directory / name).glob(f"venv/lib/*/*/{PEERS[name].package}-*.dist-info")
            machine[name] = found.stem.partition("-")[2]
        added = (directory / "packages", directory / "danlu" / "model_server")
        size = sum(
            path.stat().st_size
            for part in added
            for path in part.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
    output = options.output or HERE / "results" / f"{machine['date']}-serving.md"
    print(write(output, "The model server", describe_results(figures, size), machine))


if __name__ == "__main__":
    main()
