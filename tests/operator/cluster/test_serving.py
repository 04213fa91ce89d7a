"""A packed model on a real node: served, updated under load, refused, and removed."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.conftest import program_in
from tests.kube.servers import TOKEN
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.service_dns import opener_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("root", "docker-registry"),
    pytest.mark.timeout(900),
]

Program = Callable[..., CompletedProcess[str]]

ON = ("--on", "kubernetes")
BUILD = """\
def build():
    base(os="debian12", dev=False)
    install.python(version="3.11")
    install.python_packages(name=["numpy"])
"""
PREDICTOR = """\
import numpy as np


class Linear:
    example = [[1.0, 2.0]]

    def load(self, directory: str) -> None:
        self.weights = np.loadtxt(f"{directory}/weights.txt")

    def predict(self, rows: list) -> dict:
        return {"y": np.asarray(rows) @ self.weights}
"""
_SLICES = (
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    "?labelSelector=kubernetes.io/service-name%3Dlinear"
)


@pytest.fixture
def there(
    cluster: RunningCluster, real_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Program:
    """The real program in a project, with the kubeconfig of the cluster."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    (tmp_path / "build.envd").write_text(BUILD)
    (tmp_path / "predict.py").write_text(PREDICTOR)
    monkeypatch.chdir(tmp_path)
    program = program_in(real_home)

    def run(*arguments: str, **options: Any) -> CompletedProcess[str]:
        return program(*arguments, cwd=tmp_path, **options)

    return run


def pack(danlu: Program, image: str, weights: str) -> str:
    model = Path("model")
    model.mkdir(exist_ok=True)
    (model / "weights.txt").write_text(weights)
    danlu("pack", "model", "--predictor", "predict.py:Linear", "-t", image)
    return image


@dataclass
class Load:
    """Clients that ask all the time; ``answers`` counts results, ``failures`` has the rest."""

    cluster: RunningCluster
    answers: Counter[float] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def follow_addresses(self) -> None:
        """As a node's proxy does: addresses are those of a second ago at most."""
        opener = opener_of(self.cluster.access)
        while not self.over.wait(1):
            request = urllib.request.Request(f"{self.cluster.access.server}{_SLICES}")
            request.add_header("Authorization", f"Bearer {TOKEN}")
            with opener.open(request, timeout=60) as answer:
                slices = json.load(answer)["items"]
            self.addresses = [
                address
                for part in slices
                for endpoint in part["endpoints"] or ()
                if endpoint["conditions"].get("ready")
                for address in endpoint["addresses"]
            ]

    def ask(self, *, keep: bool) -> None:
        """Ask one pod after the other; with ``keep`` many times over one connection."""
        for number in itertools.count():
            addresses = self.addresses
            if self.over.is_set():
                return
            if not addresses:
                self.over.wait(0.05)
                continue
            connection = http.client.HTTPConnection(addresses[number % len(addresses)], 8080, 60)
            try:
                for _ in range(20 if keep else 1):
                    headers = {"content-type": "application/json"}
                    connection.request("POST", "/invocations", "[[1, 1]]", headers)
                    response = connection.getresponse()
                    body = response.read()
                    self.note(response.status, body)
                    if response.headers.get("connection", "").lower() == "close":
                        break
            except (OSError, http.client.HTTPException) as error:
                with self.changed:
                    self.failures.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()

    def note(self, status: int, body: bytes) -> None:
        with self.changed:
            if status == 200:
                self.answers[json.loads(body)["y"][0]] += 1
            else:
                self.failures.append(f"{status}: {body[:200]!r}")
            self.changed.notify_all()

    def wait_for(self, value: float, count: int) -> None:
        """Wait for that many more answers of the version that answers ``value``."""
        with self.changed:
            wanted = self.answers[value] + count
            assert self.changed.wait_for(lambda: self.answers[value] >= wanted, 120)


@contextmanager
def run_load(cluster: RunningCluster) -> Iterator[Load]:
    load = Load(cluster)
    threads = [
        threading.Thread(target=load.follow_addresses),
        *(threading.Thread(target=load.ask, kwargs={"keep": keep}) for keep in (False, True) * 2),
    ]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.over.set()
        for thread in threads:
            thread.join()


def test_an_update_under_load_loses_no_request(cluster: RunningCluster, there: Program) -> None:
    image = f"{cluster.registry}/team/linear"
    first = pack(there, f"{image}:1", "1 1")
    second = pack(there, f"{image}:2", "2 2")
    started = there("serve", first, *ON, "--replicas", "2")
    assert started.stdout == "http://linear.default.svc\n"
    with run_load(cluster) as load:
        load.wait_for(2.0, 200)
        there("serve", second, *ON, "--replicas", "2")
        load.wait_for(4.0, 200)
        # The number of replicas, and the options of the server.
        there("serve", second, *ON, "--replicas", "1", "--workers", "2")
        load.wait_for(4.0, 200)
    assert load.failures == []
    (row,) = json.loads(there("serve", "ls", "--format", "json", *ON).stdout)
    assert (row["image"], row["state"], row["replicas"]) == (second, "Ready", 1)
    assert "is ready" in there("serve", "logs", "linear", *ON).stdout
    there("serve", "rm", "linear", *ON)
    assert there("serve", "ls", "-q", *ON).stdout == ""


def test_a_version_that_cannot_start_is_named_and_the_earlier_one_answers(
    cluster: RunningCluster, there: Program
) -> None:
    image = pack(there, f"{cluster.registry}/team/linear:1", "1 1")
    there("serve", image, *ON)
    with run_load(cluster) as load:
        load.wait_for(2.0, 1)
        failed = there("serve", image, *ON, "--grpc-port", "9000", check=False)
        load.wait_for(2.0, 100)
    assert failed.returncode == 1
    assert "CrashLoopBackOff" in failed.stderr
    assert "the image was packed without --grpc" in failed.stderr
    assert "the earlier version still answers" in failed.stderr
    assert load.failures == []
    assert "Updating" in there("serve", "status", "linear", *ON).stdout
    # The same as before ends the update.
    there("serve", image, *ON)
    there("serve", "rm", "linear", *ON)
