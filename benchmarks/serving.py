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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
PAIRS = 4000
"""Requests that the latency of a lone one is measured with, by turns with and without batches."""
TIMEOUT = 120
UNBATCHED = "danlu, no batches"
CEILING = "uvicorn alone"
SLOW_CLIENTS = (4, 8, 16, 32)
GROUP_SECONDS = 0.107

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
#: What a server on uvicorn can reach with the slow model and 32 clients: it decodes no request,
#: encodes no answer, and makes one call for all clients, whose number it knows.
UVICORN = """
import asyncio
import sys
import time
import uvicorn

ANSWER = b'{"model_name":"m","model_version":"1","outputs":[{"name":"output","shape":[1,1],' \\
    b'"datatype":"FP32","data":[0.5]}]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
waiting = []


def call(loop, batch):
    time.sleep(0.005 + 0.0002 * len(batch))
    loop.call_soon_threadsafe(finish, batch)


def finish(batch):
    for future in batch:
        if not future.done():
            future.set_result(None)


async def app(scope, receive, send):
    body = (await receive())["body"]
    if body.count(b"0.5") == 5:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting.append(future)
        if len(waiting) == 32:
            loop.run_in_executor(None, call, loop, waiting[:])
            waiting.clear()
        await future
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


uvicorn.run(
    app, host="127.0.0.1", port=int(sys.argv[1]), http="httptools", loop="uvloop",
    access_log=False, log_config=None, lifespan="off", ws="none",
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

    def connect(self) -> socket.socket:
        """Return a connection to it."""
        return socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT)

    def write_request(self, model: str) -> bytes:
        """Return a request with its head."""
        body = self.write_body(model).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body

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

    def set_processors(self, processors: Iterable[int]) -> None:
        """Let all of its threads run on some processors only."""
        for pid, _ in self._find_processes():
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), processors)

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
    server: MeasuredServer, model: str, connections: int, script: Path, groups: int = 1
) -> LoadResult:
    """Send requests for some seconds, after one that is not counted.

    The connections are opened in ``groups``, one a tenth of a second after the other.
    """
    script.write_text(WRK % server.write_body(model))
    command = ["wrk", "-t1", f"-c{connections // groups}", "-s", script, "--timeout", "30"]
    with server.resume():
        subprocess.run([*command, "-d1", server.address], check=True, capture_output=True)
        before = server.read_cpu_seconds()
        clients = []
        for _ in range(groups):
            program = [*command, f"-d{SECONDS}", server.address]
            clients.append(subprocess.Popen(program, stdout=subprocess.PIPE, text=True))
            time.sleep(GROUP_SECONDS)
        outputs = [client.communicate()[0] for client in clients]
        cpu = server.read_cpu_seconds() - before
    found = [re.search(r"DONE\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)", output) for output in outputs]
    counts = [(int(match[1]), float(match[2])) for match in found if match and not float(match[3])]
    if len(counts) < groups:
        raise RuntimeError(f"{server.address}: requests failed\n{outputs}")
    return LoadResult(
        count := sum(count for count, _ in counts),
        sum(count / seconds * 1e6 for count, seconds in counts),
        statistics.median(float(match[4]) / 1e6 for match in found if match),
        cpu / max(1, count),
    )


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
        place, port = directory / "uvicorn", find_port()
        place.mkdir()
        (place / "serve.py").write_text(
            f"import sys\nsys.path[1:1] = [{str(packages)!r}]\n{UVICORN}"
        )
        program = [sys.executable, "serve.py", str(port)]
        start(CEILING, program, place, port, path, Path(sys.executable).parent)
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
            *(("slow", count) for count in SLOW_CLIENTS),
        ):
            row = figures.setdefault((model, connections), defaultdict(list))
            for name in names:
                if name not in _list_measured(names, model, connections):
                    continue
                groups = 2 if model == "slow" and name != CEILING else 1
                row[name].append(measure_load(servers[name], model, connections, script, groups))
                result = row[name][-1]
                print(
                    f"round {number + 1}: {name}, {model}, {connections}: {result.rate:.0f}/s,"
                    f" p50 {result.median * 1e3:.2f} ms, CPU {result.cpu * 1e6:.0f} µs",
                    file=sys.stderr,
                    flush=True,
                )
    return figures


def _list_measured(names: Sequence[str], model: str, connections: int) -> Sequence[str]:
    if model == "slow":
        return ("danlu", CEILING) if connections == max(SLOW_CLIENTS) else ("danlu",)
    return [name for name in names if name not in (UNBATCHED, CEILING)]


def measure_pairs(one: MeasuredServer, other: MeasuredServer) -> tuple[float, float, float]:
    """Return the medians of the latency of a lone request at two servers, and of the ratios.

    Both are asked by turns, in the order ABBA, so that what else the machine does meets both. They
    run on one processor, and this program on another: where the threads of a server happen to be
    makes more difference than what is measured.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    processors = sorted(os.sched_getaffinity(0))
    one.set_processors(processors[-1:])
    other.set_processors(processors[-1:])
    os.sched_setaffinity(0, processors[:1])
    with one.resume(), other.resume(), one.connect() as first, other.connect() as second:
        request = one.write_request("no-op")
        for number in range(PAIRS):
            turns = [(first, seconds[0]), (second, seconds[1])]
            for connection, found in turns if number % 2 else reversed(turns):
                start = time.perf_counter()
                connection.sendall(request)
                answer = b""
                while not answer.endswith(b"]}]}"):
                    answer += connection.recv(65536)
                found.append(time.perf_counter() - start)
    for server in (one, other):
        server.set_processors(processors)
    os.sched_setaffinity(0, processors)
    skipped = PAIRS // 10
    ratios = [a / b for a, b in zip(*seconds, strict=True)]
    one_median, other_median, ratio = (
        statistics.median(values[skipped:]) for values in (*seconds, ratios)
    )
    return one_median, other_median, ratio


def _find_median(results: Sequence[LoadResult], field: str) -> float:
    return statistics.median(getattr(result, field) for result in results)


def _find_ratio(row: Mapping[str, Sequence[LoadResult]], one: str, other: str, field: str) -> float:
    """Return the median of the ratios in each round."""
    pairs = zip(row[one], row[other], strict=True)
    return statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs)


def describe_results(
    figures: Mapping[tuple[str, int], Mapping[str, Sequence[LoadResult]]],
    pairs: tuple[float, float, float],
    size: int,
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
    for connections in CONNECTIONS if peers else ():
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
    lines.append(
        f"| median latency with batches within 5 % of without, {PAIRS} pairs | {pairs[2]:.3f}"
        f" ({pairs[0] * 1e3:.3f} and {pairs[1] * 1e3:.3f} ms) |"
    )
    for clients in SLOW_CLIENTS:
        for name, results in figures["slow", clients].items():
            share = _find_median(results, "rate") * (5 + 0.2 * clients) / (clients * 1e3)
            asked = "≥ 90 % of" if (name, clients) == ("danlu", 32) else f"{name}:"
            lines.append(
                f"| {asked} the ideal, {clients} clients, 5 ms + 0.2 ms per row | {share:.0%} |"
            )
    row = figures["slow", max(SLOW_CLIENTS)]
    lines += [
        f"| the same, compared with {CEILING} | {_find_ratio(row, 'danlu', CEILING, 'rate'):.0%} |",
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
            pairs = measure_pairs(servers["danlu"], servers[UNBATCHED])
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
    print(write(output, "The model server", describe_results(figures, pairs, size), machine))


if __name__ == "__main__":
    main()
