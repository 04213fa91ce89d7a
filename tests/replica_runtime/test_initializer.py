"""The program of initializers without its clients: addresses, names, links and copies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.replica_runtime import initializer
from danlu.replica_runtime.initializer import InitializerError, check_address, find_source


def load(target: Path, uri: str, *further: str, **variables: str) -> tuple[int, str]:
    """Run the program in a Python without further packages; return its code and its errors."""
    result = subprocess.run(
        [sys.executable, "-I", "-S", initializer.__file__, "dataset", str(target), *further],
        env={"STORAGE_URI": uri, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.returncode, result.stderr


def list_files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {"train.csv": "1", "sub/x.bin": "2", "näme ü.txt": "3"}
    for name, text in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("kind", "uri", "message"),
    [
        ("dataset", "", "STORAGE_URI is not set"),
        ("model", "gs://bucket/model", "unsupported scheme 'gs'"),
        ("model", "/data", "unsupported scheme ''"),
        ("dataset", "cache://schema/table", "unsupported scheme 'cache'"),
        ("dataset", "HF://a/b", ""),  # urlparse knows no case of schemes
        ("dataset", "hf://alpaca", "no dataset"),
        ("dataset", "hf://alpaca/", "no dataset"),
        ("model", "hf://gpt2", ""),
        ("model", "hf:///gpt2", "invalid address"),
        ("dataset", "hf://tatsu-lab/alpaca/main", ""),
        ("dataset", "s3://bucket", ""),
        ("dataset", "s3:///key", "invalid address"),
        ("dataset", "file:///data", ""),
        ("dataset", "file://localhost/data", ""),
        ("dataset", "file://data/train", "no directory"),
        ("dataset", "file:///", "no directory"),
    ],
)
def test_addresses_that_cannot_be_loaded_are_refused(kind: str, uri: str, message: str) -> None:
    if not message:
        check_address(kind, uri)
        return
    with pytest.raises(InitializerError) as caught:
        check_address(kind, uri)
    assert message in caught.value.message


def test_the_data_cache_is_named() -> None:
    with pytest.raises(InitializerError) as caught:
        check_address("dataset", "cache://schema/table")
    assert "Kubeflow's data cache runs on a cluster only" in caught.value.hint


def test_the_path_of_an_address_is_decoded() -> None:
    assert find_source("file:///my%20data/x") == "/my data/x"
    assert find_source("s3://my/data") == ""


def test_a_directory_of_the_host_is_copied(source: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("train.csv")
    (source / "around").symlink_to(source)
    target = tmp_path / "volume/dataset"
    assert load(target, source.as_uri()) == (0, "")
    assert list_files(target) == {**list_files(source), "link": "1"}
    assert not (target / "link").is_symlink()
    assert load(target, "file:///elsewhere", str(source / "sub"))[0] == 0
    assert (target / "x.bin").read_text() == "2"


def test_one_file_of_the_host_is_copied(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume/dataset"
    assert load(target, (source / "näme ü.txt").as_uri()) == (0, "")
    assert list_files(target) == {"näme ü.txt": "3"}


def test_patterns_ignore_files(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume/dataset"
    assert load(target, source.as_uri(), IGNORE_PATTERNS=" *.bin , n*,") == (0, "")
    assert list_files(target) == {"train.csv": "1"}


def test_a_directory_is_not_copied_into_itself(source: Path) -> None:
    code, errors = load(source / "volume/dataset", source.as_uri())
    assert code == 1
    assert "into itself" in errors


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "..", "a\0b"])
def test_a_name_outside_of_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    with open(os.devnull, "rb") as source, pytest.raises(InitializerError, match="invalid name"):
        initializer._write_file(str(tmp_path / "dataset"), name, source)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", ["dataset", "dataset/sub", "dataset/.danlu-part"])
def test_a_link_out_of_the_volume_is_not_followed(place: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/x.bin").write_text("mine")
    link = tmp_path / "volume" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "private")
    code, errors = load(tmp_path / "volume/dataset", source.as_uri())
    assert code == 1
    assert f"{link} is a link out of the volume" in errors
    assert list_files(tmp_path / "private") == {"x.bin": "mine"}


def test_links_within_the_volume_stay(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume/dataset"
    (target / "real").mkdir(parents=True)
    (target / "sub").symlink_to("real")
    assert load(target, source.as_uri()) == (0, "")
    assert (target / "real/x.bin").read_text() == "2"


def test_a_file_that_was_not_read_completely_has_no_name(tmp_path: Path) -> None:
    class Broken:
        def __init__(self) -> None:
            self.chunks = [b"first"]

        def read(self, size: int) -> bytes:
            if not self.chunks:
                raise OSError("reset by peer")
            return self.chunks.pop()

    (tmp_path / "x").write_text("earlier")
    with pytest.raises(OSError, match="reset by peer"):
        initializer._write_file(str(tmp_path), "x", Broken())
    assert list_files(tmp_path) == {"x": "earlier"}


@pytest.mark.parametrize(
    ("uri", "package"), [("hf://a/b", "huggingface_hub"), ("s3://a", "opendal")]
)
def test_a_missing_package_is_named(uri: str, package: str, tmp_path: Path) -> None:
    code, errors = load(tmp_path / "dataset", uri)
    assert code == 1
    first, hint = errors.splitlines()
    assert first.startswith(f"dataset-initializer: {package} cannot be imported by ")
    assert f"pip install {package}" in hint


def test_a_missing_directory_is_one_message(tmp_path: Path) -> None:
    code, errors = load(tmp_path / "dataset", (tmp_path / "none").as_uri())
    assert code == 1
    assert errors == (
        f"dataset-initializer: cannot load {(tmp_path / 'none').as_uri()}:"
        f" [Errno 2] No such file or directory: '{tmp_path / 'none'}'\n"
    )
