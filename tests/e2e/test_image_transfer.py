"""Pushes and pulls that are killed or lose the network, with a real registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import remove_tree
from tests.fakes.tcp_proxy import TcpProxy
from tests.oci.registries import debian_registry
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("docker-registry"),
]

DANLU = Path(sys.executable).with_name("danlu")
LARGE = 24 << 20
WAIT = 60


@dataclass
class TransferHost:
    """A registry with its log, and a danlu with a separate home."""

    registry: str
    log: Path
    home: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(DANLU), "image", *words],
            env={**os.environ, "DANLU_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == code, out + err
        return out + err

    def take_requests(self, pattern: str) -> list[str]:
        """Lines of the access log that match; the log is emptied."""
        lines = [line for line in self.log.read_text().splitlines() if re.search(pattern, line)]
        os.truncate(self.log, 0)
        return lines


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TransferHost]:
    log = tmp_path / "registry.log"
    log.touch()
    home = tmp_path / "home"
    with debian_registry(log=log) as registry:
        yield TransferHost(registry, log, home)
    remove_tree(home)


def write_layout(place: Path, sizes: Sequence[int]) -> Path:
    """An OCI layout of an image whose layers have files of these sizes."""
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    layers, diff_ids = [], []
    for number, size in enumerate(sizes):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            member = tarfile.TarInfo(f"file{number}")
            member.size = size
            tar.addfile(member, io.BytesIO(random.Random(number).randbytes(size)))
        diff_ids.append("sha256:" + hashlib.sha256(stream.getvalue()).hexdigest())
        blob = put(gzip.compress(stream.getvalue(), 1, mtime=0))
        layers.append({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **blob})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **put(json.dumps(config).encode()),
        },
        "layers": layers,
    }
    entry = {"mediaType": manifest["mediaType"], **put(json.dumps(manifest).encode())}
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (place / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return place


def load_image(host: TransferHost, tmp_path: Path, *sizes: int) -> None:
    host.run("load", str(write_layout(tmp_path / "layout", sizes)), "-t", "demo:1")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_push_sends_only_what_had_not_arrived(
    host: TransferHost, tmp_path: Path, how: signal.Signals
) -> None:
    load_image(host, tmp_path, 1000, 2000, LARGE)
    with TcpProxy(host.registry, limit=LARGE // 2, upstream=True) as network:
        name = f"{network.host}/app:1"
        host.run("tag", "demo:1", name)
        process = host.start("push", name)
        assert network.reached.wait(WAIT)
        process.send_signal(how)
        process.communicate(timeout=WAIT)
        assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
        network.release()
        before = len(host.take_requests(r'"PUT /v2/app/blobs/\S+ HTTP/1.1" 201'))
        assert before == 2
        text = host.run("push", name)
        assert "sent 1 layer (25 MB), 2 existed" in text
        assert len(host.take_requests(r'"PUT /v2/app/blobs/\S+ HTTP/1.1" 201')) == 2
    assert "no damage found" in host.run("check")


def test_push_survives_lost_connections(host: TransferHost, tmp_path: Path) -> None:
    load_image(host, tmp_path, 1000, LARGE)
    with TcpProxy(host.registry, limit=LARGE // 2, upstream=True, drops=2) as network:
        name = f"{network.host}/app:1"
        text = host.run("push", "demo:1", name)
        assert "trying again in" in text
        assert "sent 2 layers (25 MB)" in text
    host.run("pull", f"{host.registry}/app:1")


def test_killed_pull_continues_in_the_middle_of_a_layer(host: TransferHost, tmp_path: Path) -> None:
    load_image(host, tmp_path, 1000, LARGE)
    host.run("push", "demo:1", f"{host.registry}/app:1")
    second = TransferHost(host.registry, host.log, tmp_path / "second")
    try:
        with TcpProxy(host.registry, limit=LARGE // 2, upstream=False) as network:
            name = f"{network.host}/app:1"
            process = second.start("pull", name)
            assert network.reached.wait(WAIT)
            # What the network has transferred is not all written yet.
            partial = second.home / "store" / "partial"
            wait_for(lambda: any(f.stat().st_size > LARGE // 4 for f in partial.iterdir()))
            process.kill()
            process.communicate(timeout=WAIT)
            network.release()
            large = max(partial.iterdir(), key=lambda path: path.stat().st_size)
            host.take_requests("")
            second.run("pull", name)
        (line,) = host.take_requests(r'" 206 ')
        served = int(line.split('" 206 ')[1].split()[0])
        assert served < LARGE
        assert "no damage found" in second.run("check")
        assert not large.exists()
    finally:
        remove_tree(second.home)


def test_layers_of_another_repository_are_mounted(host: TransferHost, tmp_path: Path) -> None:
    load_image(host, tmp_path, 1000, LARGE)
    host.run("push", "demo:1", f"{host.registry}/app:1")
    host.take_requests("")
    text = host.run("push", "demo:1", f"{host.registry}/team/app:1")
    assert "sent 0 layers, 2 mounted from another repository" in text
    lines = host.take_requests(r'" 20[12] ')
    assert not [line for line in lines if "PATCH" in line]
    # The image's configuration and the manifest.
    assert len([line for line in lines if "PUT" in line]) == 2
