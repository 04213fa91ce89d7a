"""The program of initializers with the real clients, for a hub and an S3 on this machine.

The expected files are those that Kubeflow Trainer's own program (``pkg/initializers``, 8c0f5059b)
left with the same clients, hub and S3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import initializer
from tests.fakes.hub import FakeHub, serve_hub
from tests.fakes.s3 import CLIENT_PACKAGES, SERVER_PACKAGES, serve_s3
from tests.serving.servers import install_packages

pytestmark = pytest.mark.real

FILES = {
    "README.md": b"r",
    "config.json": b"{}",
    "data/train.parquet": b"P" * 100_000,
    "data/x.bin": b"b",
    "model.safetensors": b"s" * 1000,
    "sub/a.txt": b"a",
    "sub/deep/v.json": b"v",
    "tokenizer.model": b"t",
    "w.gguf": b"g",
    "x.pt": b"pt",
}
OBJECTS = {
    "team": {
        "big/blob": 3 << 20,
        "data/näme ü.txt": 5,
        "data/sub/": 0,
        "data/sub/x.bin": 2,
        "data/train.csv": 1,
        "database/y": 3,
        "single.txt": 4,
    },
    "dots": {"d/../../etc/x": 1},
    "clash": {"d/a": 1, "d/a/b": 1},
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clients")
    return install_packages(place, *CLIENT_PACKAGES, *SERVER_PACKAGES)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve_hub(FakeHub({"datasets/team/data": FILES, "models/team/net": FILES})) as hub:
        yield hub


@pytest.fixture(scope="module")
def s3(clients: Path) -> Iterator[str]:
    with serve_s3(clients, OBJECTS) as url:
        yield url


class Initializer:
    """The program for one volume; ``errors`` is what it printed last."""

    def __init__(self, place: Path, clients: Path, variables: dict[str, str]) -> None:
        self.volume = place / "volume"
        self.home = place / "home"
        paths = {"PATH": os.environ["PATH"], "PYTHONPATH": str(clients), "HOME": str(self.home)}
        self.variables = {**paths, **variables}
        self.errors = ""

    def start(self, kind: str, uri: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, initializer.__file__, kind, str(self.volume / kind)],
            env={**self.variables, "STORAGE_URI": uri, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def load(self, kind: str, uri: str, **variables: str) -> dict[str, int] | None:
        """Load data; return the sizes of its files, or None if that failed."""
        process = self.start(kind, uri, **variables)
        self.errors = process.communicate()[1]
        return None if process.returncode else self.list_files(kind)

    def list_files(self, kind: str) -> dict[str, int]:
        root = self.volume / kind
        files = (path for path in sorted(root.rglob("*")) if path.is_file())
        # Next to its files, the Hub's client notes where they come from.
        named = ((str(path.relative_to(root)), path.stat().st_size) for path in files)
        return {name: size for name, size in named if not name.startswith(".cache/")}

    def read_error(self) -> str:
        """Return the only line of the last error but for bars of progress."""
        lines = [line for line in self.errors.splitlines() if "-initializer: " in line]
        assert len(lines) == 1, self.errors
        assert "Traceback" not in self.errors
        return lines[0]


@pytest.fixture
def from_hub(clients: Path, hub: FakeHub, tmp_path: Path) -> Initializer:
    return Initializer(tmp_path, clients, {"HF_ENDPOINT": hub.url, "HF_HUB_ETAG_TIMEOUT": "1"})


@pytest.fixture
def from_s3(clients: Path, s3: str, tmp_path: Path) -> Initializer:
    keys = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key", "REGION": "us-east-1"}
    return Initializer(tmp_path, clients, {"ENDPOINT": s3, **keys})


# -- the Hub --------------------------------------------------------------------------------------

ALL = {name: len(data) for name, data in FILES.items()}


@pytest.mark.parametrize(
    ("kind", "uri", "ignored", "missing"),
    [
        ("dataset", "hf://team/data", "", ()),
        (
            "dataset",
            "hf://team/data/what/follows",
            "*.bin, sub/*",
            ("data/x.bin", "sub/a.txt", "sub/deep/v.json"),
        ),
        (
            "model",
            "hf://team/net",
            "",
            ("README.md", "data/train.parquet", "data/x.bin", "x.pt"),
        ),
        (
            "model",
            "hf://team/net",
            "*.json,*.txt",
            (
                *("README.md", "data/train.parquet", "data/x.bin", "x.pt"),
                *("config.json", "sub/a.txt", "sub/deep/v.json"),
            ),
        ),
    ],
)
def test_a_repository_is_loaded_as_by_trainer(
    from_hub: Initializer, kind: str, uri: str, ignored: str, missing: tuple[str, ...]
) -> None:
    expected = {name: size for name, size in ALL.items() if name not in missing}
    assert from_hub.load(kind, uri, IGNORE_PATTERNS=ignored) == expected
    # A second run of a retained volume.
    assert from_hub.load(kind, uri, IGNORE_PATTERNS=ignored) == expected


def test_a_token_is_the_jobs_and_replaces_none_of_the_user(
    from_hub: Initializer, hub: FakeHub
) -> None:
    token = from_hub.home / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("the user's")
    hub.token = "the job's"
    assert from_hub.load("dataset", "hf://team/data", ACCESS_TOKEN="the job's") == ALL
    assert from_hub.load("dataset", "hf://team/data", ACCESS_TOKEN="another") is None
    assert "Invalid user token" in from_hub.read_error()
    assert [path.name for path in token.parent.iterdir()] == ["token"]
    assert token.read_text() == "the user's"
    # Without a token of the job the client has that of the user.
    hub.token = "the user's"
    assert from_hub.load("dataset", "hf://team/data") == ALL


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_the_answer_of_a_hub_is_the_reason(
    from_hub: Initializer, hub: FakeHub, status: int
) -> None:
    hub.status = status
    assert from_hub.load("model", "hf://team/net") is None
    error = from_hub.read_error()
    assert error.startswith(f"model-initializer: cannot load hf://team/net from {hub.url}: ")
    assert str(status) in error
    assert from_hub.list_files("model") == {}


def test_a_hub_that_does_not_answer_is_an_error_although_the_files_exist(
    from_hub: Initializer, hub: FakeHub
) -> None:
    assert from_hub.load("dataset", "hf://team/data") == ALL
    hub.silent = True
    assert from_hub.load("dataset", "hf://team/data") is None
    assert "timed out" in from_hub.read_error()


def test_a_hub_that_is_not_there_is_an_error(from_hub: Initializer) -> None:
    assert from_hub.load("dataset", "hf://team/data", HF_ENDPOINT="http://127.0.0.1:9") is None
    error = from_hub.read_error()
    assert "from http://127.0.0.1:9: " in error
    assert "refused" in error


def test_a_repository_that_does_not_exist_is_named(from_hub: Initializer) -> None:
    assert from_hub.load("model", "hf://team/none") is None
    assert "Repository Not Found" in from_hub.read_error()


@pytest.mark.parametrize("name", ["../x.json", "a/../../x.json"])
def test_a_hub_cannot_write_outside_of_the_directory(
    from_hub: Initializer, hub: FakeHub, name: str
) -> None:
    hub.repositories = {"models/team/net": {**FILES, name: b"hostile"}}
    assert from_hub.load("model", "hf://team/net") is None
    assert f"invalid name '{name}'" in from_hub.read_error()
    assert [*from_hub.volume.rglob("x.json")] == []


def test_an_initializer_that_is_stopped_leaves_no_file_with_half_of_its_content(
    from_hub: Initializer, hub: FakeHub
) -> None:
    big = {"big.bin": bytes(64 << 20)}
    sent = threading.Event()

    class SlowHub(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            sent.set()
            return super().__getitem__(name)

    hub.repositories = {"datasets/team/data": SlowHub(big)}
    process = from_hub.start("dataset", "hf://team/data")
    assert sent.wait(60)
    process.terminate()
    process.communicate()
    assert process.returncode
    assert set(from_hub.list_files("dataset").values()) <= {64 << 20}
    assert from_hub.load("dataset", "hf://team/data") == {"big.bin": 64 << 20}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[None]:
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", volume], check=True)
    yield
    subprocess.run(["umount", volume], check=True)


@pytest.mark.needs("root")
@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_the_reason(
    from_hub: Initializer, hub: FakeHub, from_s3: Initializer
) -> None:
    hub.repositories = {"datasets/team/data": {"big": bytes(3 << 20)}}
    assert from_hub.load("dataset", "hf://team/data") is None
    assert "No space left on device" in from_hub.read_error()
    assert from_s3.load("model", "s3://team/big") is None
    assert "No space left on device" in from_s3.read_error()
    assert from_s3.list_files("model") == from_hub.list_files("dataset") == {}


# -- S3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "uri", "ignored", "expected"),
    [
        # A prefix of names, as Trainer's; only with a slash at its end it is a directory.
        (
            "dataset",
            "s3://team/data",
            "",
            {"base/y": 3, "näme ü.txt": 5, "sub/x.bin": 2, "train.csv": 1},
        ),
        ("dataset", "s3://team/data/", "", {"näme ü.txt": 5, "sub/x.bin": 2, "train.csv": 1}),
        ("model", "s3://team/single.txt", "", {"single.txt": 4}),
        (
            "dataset",
            "s3://team",
            "*.bin,sing*",
            {"big/blob": 3 << 20, "data/näme ü.txt": 5, "data/train.csv": 1, "database/y": 3},
        ),
        # Patterns are for whole keys.
        ("model", "s3://team/big", "blob", {"blob": 3 << 20}),
        ("dataset", "s3://team/none", "", {}),
    ],
)
def test_objects_are_loaded_as_by_trainer(
    from_s3: Initializer, kind: str, uri: str, ignored: str, expected: dict[str, int]
) -> None:
    assert from_s3.load(kind, uri, IGNORE_PATTERNS=ignored) == expected
    assert ("no object of" in from_s3.errors) == (not expected)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://nobody/data", "NoSuchBucket"),
        ("s3://dots/d", "invalid name '../../etc/x': it leads out of the directory"),
        ("s3://dots", "invalid name 'd/../../etc/x'"),
        ("s3://clash/d", "File exists"),
    ],
)
def test_objects_that_cannot_be_loaded_are_one_message(
    from_s3: Initializer, uri: str, reason: str
) -> None:
    assert from_s3.load("dataset", uri) is None
    error = from_s3.read_error()
    assert reason in error
    assert "response: Parts" not in error
    assert [*from_s3.volume.rglob(".danlu-part")] == []


def test_an_s3_that_is_not_there_is_an_error(from_s3: Initializer) -> None:
    assert from_s3.load("dataset", "s3://team/data", ENDPOINT="http://127.0.0.1:9") is None
    assert "Connection refused" in from_s3.read_error()
