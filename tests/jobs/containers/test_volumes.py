"""Volumes of a pod: from the template to the mounts of the container."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import UsageError
from danlu.jobs.local.volumes import (
    EmptyDir,
    HostPath,
    VolumeFiles,
    VolumeSource,
    create_volumes,
    remove_volumes,
    resolve_volumes,
)
from tests.jobs.local.support import WORKER, local_jobs, spec, submission

OBJECTS = {
    "ConfigMap/settings": {"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAE="}},
    "Secret/key": {"data": {"token": base64.b64encode(b"secret").decode()}},
}


def one(**volume: Any) -> Any:
    """The only volume of a pod."""
    return resolve_volumes({"volumes": [{"name": "v", **volume}]}, OBJECTS, {})["v"]


def test_a_pod_without_volumes_has_none() -> None:
    assert resolve_volumes({}, {}, {}) == {}
    assert resolve_volumes({"volumes": None}, {}, {}) == {}


def test_a_volume_without_a_source_is_an_empty_dir() -> None:
    assert one() == one(emptyDir={}) == one(emptyDir=None) == EmptyDir()


def test_an_empty_dir_may_be_in_memory_and_have_a_size_limit() -> None:
    assert one(emptyDir={"medium": "Memory", "sizeLimit": "1Gi"}) == EmptyDir(True, 1 << 30)


def test_each_key_of_a_config_map_is_a_file() -> None:
    mode = 0o644
    expected = {"a": (b"1", mode), "b": (b"2", mode), "c": (b"\0\1", mode)}
    assert one(configMap={"name": "settings"}) == VolumeFiles(expected)


def test_items_choose_keys_paths_and_modes() -> None:
    items = [{"key": "a", "path": "below/one", "mode": 0o400}, {"key": "b", "path": "two"}]
    result = one(configMap={"name": "settings", "items": items, "defaultMode": 0o600})
    assert result == VolumeFiles({"below/one": (b"1", 0o400), "two": (b"2", 0o600)})


def test_several_objects_are_projected_into_one_volume() -> None:
    parts = [
        {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
        {"secret": {"name": "key"}},
    ]
    result = one(projected={"sources": parts, "defaultMode": 0o440})
    assert result == VolumeFiles({"a": (b"1", 0o440), "token": (b"secret", 0o440)})


def test_optional_objects_and_keys_may_be_missing() -> None:
    assert one(configMap={"name": "absent", "optional": True}) == VolumeFiles({})
    items = [{"key": "absent", "path": "x"}]
    assert one(secret={"secretName": "key", "items": items, "optional": True}) == VolumeFiles({})


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "absent"}}, "ConfigMap 'absent' not found"),
        ({"secret": {"secretName": "absent"}}, "Secret 'absent' not found"),
        ({"secret": {"secretName": "key", "items": [{"key": "x", "path": "x"}]}}, "no key 'x'"),
        (
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "../a"}]}},
            "volume v: invalid path",
        ),
        (
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "/etc/passwd"}]}},
            "volume v: invalid path",
        ),
        ({"persistentVolumeClaim": {"claimName": "data"}}, "persistentVolumeClaim"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}},
            "projecting",
        ),
        ({"hostPath": {"path": "data"}}, "must be absolute"),
        ({"hostPath": {"path": "/data", "type": "Folder"}}, "unknown hostPath type"),
    ],
)
def test_unsupported_volumes_are_rejected(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        one(**volume)


def test_files_are_created_with_their_modes(tmp_path: Path) -> None:
    files = VolumeFiles({"below/one": (b"1", 0o400), "two": (b"2", 0o755)})
    expected: dict[str, VolumeSource] = {"v": files, "w": EmptyDir()}
    volumes = create_volumes(expected, tmp_path / "made")
    one, two = volumes["v"] / "below/one", volumes["v"] / "two"
    assert (one.read_bytes(), two.read_bytes()) == (b"1", b"2")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (one, two)] == [0o400, 0o755]
    assert stat.S_IMODE(volumes["w"].stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    remove_volumes(tmp_path / "made")
    assert not (tmp_path / "made").exists()
    remove_volumes(tmp_path / "made")


def test_a_host_path_is_used_in_place_and_never_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    expected = {
        "data": HostPath(tmp_path / "data", "Directory"),
        "new": HostPath(tmp_path / "a/new", "DirectoryOrCreate"),
        "file": HostPath(tmp_path / "file", "FileOrCreate"),
    }
    volumes = create_volumes(expected, tmp_path / "made")
    assert volumes == {name: source.path for name, source in expected.items()}
    assert volumes["new"].is_dir()
    assert volumes["file"].is_file()
    remove_volumes(tmp_path / "made")
    assert all(path.exists() for path in volumes.values())


@pytest.mark.parametrize("kind", ["", "Directory", "File", "Socket"])
def test_a_missing_host_path_is_rejected(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        create_volumes({"v": HostPath(tmp_path / "absent", kind)}, tmp_path / "made")
    assert "DirectoryOrCreate" in caught.value.hint


@pytest.mark.anyio
async def test_a_job_with_an_unsupported_volume_is_not_started(tmp_path: Path) -> None:
    job_submission = submission(tmp_path, spec("true"))
    template = job_submission.job.replicas[WORKER].template
    template["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]
    with pytest.raises(UsageError, match="persistentVolumeClaim"):
        await local_jobs(tmp_path / "home").submit(job_submission)
    assert not (tmp_path / "home/jobs/job").exists()
