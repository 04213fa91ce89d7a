"""The model server as in a packed image, but in a directory of this machine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from danlu.serving import predictor_values, runner
from danlu.serving import server as server_package
from tests.test_repository import ROOT

MODULES = Path(server_package.__file__).parent
_PROGRAM = """\
import sys

sys.path[0] = {root!r}
sys.path[1:1] = {packages!r}

from model_server.main import main

sys.exit(main(sys.argv[1:]))
"""


def install_packages(place: Path, *names: str, requirements: tuple[Path, ...] = ()) -> Path:
    """Install packages into a directory; return it."""
    command: list[str | Path] = [
        ROOT / ".venv/bin/uv",
        "pip",
        "install",
        "-q",
        "--python",
        sys.executable,
    ]
    if requirements:
        command += ["--no-deps", "--require-hashes"]
    command += [f"--requirements={path}" for path in requirements]
    subprocess.run([*command, "--target", str(place), *names], check=True, timeout=300)
    return place


@dataclass
class RunningServer:
    """A server that runs; ``lines`` are those of its log so far."""

    process: subprocess.Popen[str]
    port: int = 0
    grpc_port: int = 0
    lines: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def follow(self) -> None:
        """Collect the log until the server ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def wait_for(self, text: str, count: int = 1) -> re.Match[str]:
        """Return the match in the ``count``-th line of the log that has the pattern ``text``."""

        def find() -> list[re.Match[str]]:
            return [match for match in (re.search(text, line) for line in self.lines) if match]

        with self._changed:
            if not self._changed.wait_for(lambda: len(find()) >= count, 100):
                raise AssertionError(f"no {text!r} in {self.lines}")
            return find()[count - 1]


@dataclass
class ServerDirectory:
    """Where the server's packages are, and a place for models."""

    packages: Path
    place: Path

    def write(self, code: str, example: Any) -> None:
        """Write a predictor's module, whose class is ``Model``, and its example input."""
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "code").mkdir(parents=True)
        (self.place / "model").mkdir()
        (self.place / "code" / "predictor.py").write_text(code)
        shutil.copy(runner.__file__, self.place / "run.py")
        shutil.copy(predictor_values.__file__, self.place)
        shutil.copytree(MODULES, self.place / "model_server")
        about = {"module": "predictor", "class": "Model"}
        (self.place / "predictor.json").write_text(json.dumps(about))
        packages = [str(self.packages), *(path for path in sys.path if "site-packages" in path)]
        (self.place / "serve").write_text(_PROGRAM.format(root=str(self.place), packages=packages))
        # The example's output, as packing records it.
        golden = {"examples": [{"input": predictor_values.encode_value(example), "output": None}]}
        (self.place / "golden.json").write_text(json.dumps(golden))
        record = [sys.executable, "run.py", "replay", str(self.place)]
        subprocess.run(record, cwd=self.place, check=True, timeout=100)
        report = msgspec.json.decode((self.place / "report.json").read_bytes())
        golden["examples"][0]["output"] = report["outputs"][0]
        (self.place / "golden.json").write_text(json.dumps(golden))

    @contextlib.contextmanager
    def start(
        self, *options: str, name: str = "m", workers: int = 1, grpc: bool = False
    ) -> Iterator[RunningServer]:
        """Run the server until the end of the block, when it must not have ended by itself."""
        command = [sys.executable, "serve", "--host", "127.0.0.1", "--port", "0"]
        command += ["--workers", str(workers), *(("--grpc-port", "0") if grpc else ()), *options]
        environment = {"PATH": "/usr/bin:/bin", "MODEL_NAME": name, "MODEL_VERSION": "1"}
        process = subprocess.Popen(
            command, cwd=self.place, env=environment, stderr=subprocess.PIPE, text=True
        )
        server = RunningServer(process)
        thread = threading.Thread(target=server.follow)
        thread.start()
        try:
            server.port = int(server.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
            if grpc:
                server.grpc_port = int(server.wait_for(r"gRPC on 127\.0\.0\.1:(\d+)")[1])
            server.wait_for("is ready", workers)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                thread.join()
                assert process.stderr is not None
                process.stderr.close()
