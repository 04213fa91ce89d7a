"""What a job saved comes back, and nothing that it must not have left."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.jobs.sagemaker.output import collect_results, fetch_output

MODEL, OUTPUT = "output/model.tar.gz", "output/output.tar.gz"


def make_archive(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


async def download(objects: Mapping[str, bytes], key: str, file: BinaryIO) -> bool:
    file.write(objects.get(key, b""))
    return key in objects


def fetch(objects: Mapping[str, bytes], directory: Path) -> list[str]:
    keys = [key for key in objects if key.startswith("checkpoints/")]
    return list(anyio.run(fetch_output, partial(download, objects), keys, directory))


def test_parts_that_a_job_did_not_save_are_left_out(tmp_path: Path) -> None:
    objects = {
        OUTPUT: make_archive({"danlu/value.worker-0": b"v", "curve.csv": b"1"}),
        MODEL: make_archive({}),
        "checkpoints/": b"",
        "checkpoints/epoch 1/last.pt": b"c",
    }
    assert fetch(objects, tmp_path / "got") == ["output", "checkpoints"]
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert found == {
        "got",
        *("got/output", "got/output/curve.csv"),
        *("got/checkpoints", "got/checkpoints/epoch 1", "got/checkpoints/epoch 1/last.pt"),
    }


@pytest.mark.parametrize(
    "key",
    [
        "checkpoints/../../escaped",
        "checkpoints/a\0b",
        "checkpoints/" + "x" * 300,
    ],
)
def test_hostile_names_of_checkpoints_are_refused_and_leave_nothing(
    key: str, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(OutsideError):
        fetch({"checkpoints/good": b"", key: b"evil"}, tmp_path / "place" / "got")
    assert [path.name for path in tmp_path.rglob("*")] == ["place"]


def test_an_existing_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "got").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists already"):
        fetch({}, tmp_path / "got")
    assert (tmp_path / "got").is_symlink()


def test_results_are_files_of_known_replicas() -> None:
    files = {"danlu/value.worker-0": b"v", "danlu/raised.worker-1": b"r", "danlu/value.x": b"?"}
    objects = {OUTPUT: make_archive(files, {"danlu/value.worker-1": "value.worker-0"})}
    found = anyio.run(collect_results, partial(download, objects), ["worker-0", "worker-1"])
    assert found == ({"worker-0": b"v"}, {"worker-1": b"r"})


def test_results_that_lead_out_of_the_archive_are_refused() -> None:
    objects = {OUTPUT: make_archive({}, {"danlu": "/etc"}) + b""}
    hostile = make_archive({"danlu/value.worker-0": b"evil"}, {"danlu": "../.."})
    for data in (hostile, objects[OUTPUT][:30]):
        with pytest.raises(OutsideError, match="cannot unpack"):
            anyio.run(collect_results, partial(download, {OUTPUT: data}), ["worker-0"])
