"""Volumes of a pod: what a template asks for, and what is made of it."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import UsageError
from danlu.jobs.local.volumes import Empty, Files, HostPath, Source, make, remove, sources
from tests.jobs.local.support import WORKER, local_jobs, spec, submission

OBJECTS = {
    "ConfigMap/settings": {"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAE="}},
    "Secret/key": {"data": {"token": base64.b64encode(b"secret").decode()}},
}


def one(**volume: Any) -> Any:
    """The only volume of a pod."""
    return sources({"volumes": [{"name": "v", **volume}]}, OBJECTS)["v"]


def test_a_pod_without_volumes_has_none() -> None:
    assert sources({}, {}) == {}
    assert sources({"volumes": None}, {}) == {}


def test_a_volume_that_says_nothing_is_an_empty_directory() -> None:
    assert one() == one(emptyDir={}) == one(emptyDir=None) == Empty()


def test_an_empty_directory_may_be_in_memory_and_have_a_limit() -> None:
    assert one(emptyDir={"medium": "Memory", "sizeLimit": "1Gi"}) == Empty(True, 1 << 30)


def test_a_config_map_is_a_file_a_key() -> None:
    mode = 0o644
    expected = {"a": (b"1", mode), "b": (b"2", mode), "c": (b"\0\1", mode)}
    assert one(configMap={"name": "settings"}) == Files(expected)


def test_items_choose_keys_paths_and_modes() -> None:
    items = [{"key": "a", "path": "below/one", "mode": 0o400}, {"key": "b", "path": "two"}]
    found = one(configMap={"name": "settings", "items": items, "defaultMode": 0o600})
    assert found == Files({"below/one": (b"1", 0o400), "two": (b"2", 0o600)})


def test_several_objects_are_projected_into_one_volume() -> None:
    parts = [
        {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
        {"secret": {"name": "key"}},
    ]
    found = one(projected={"sources": parts, "defaultMode": 0o440})
    assert found == Files({"a": (b"1", 0o440), "token": (b"secret", 0o440)})


def test_what_is_optional_may_be_missing() -> None:
    assert one(configMap={"name": "absent", "optional": True}) == Files({})
    items = [{"key": "absent", "path": "x"}]
    assert one(secret={"secretName": "key", "items": items, "optional": True}) == Files({})


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "absent"}}, "there is no ConfigMap 'absent'"),
        ({"secret": {"secretName": "absent"}}, "there is no Secret 'absent'"),
        ({"secret": {"secretName": "key", "items": [{"key": "x", "path": "x"}]}}, "the key 'x'"),
        (
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "../a"}]}},
            "no path in the volume v",
        ),
        (
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "/etc/passwd"}]}},
            "no path in the volume v",
        ),
        ({"persistentVolumeClaim": {"claimName": "data"}}, "persistentVolumeClaim"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}, "projects service"),
        ({"hostPath": {"path": "data"}}, "not absolute"),
        ({"hostPath": {"path": "/data", "type": "Folder"}}, "unknown type"),
    ],
)
def test_what_cannot_be_had_here_is_refused(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        one(**volume)


def test_files_are_made_with_their_modes(tmp_path: Path) -> None:
    files = Files({"below/one": (b"1", 0o400), "two": (b"2", 0o755)})
    wanted: dict[str, Source] = {"v": files, "w": Empty()}
    found = make(wanted, tmp_path / "made")
    one, two = found["v"] / "below/one", found["v"] / "two"
    assert (one.read_bytes(), two.read_bytes()) == (b"1", b"2")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (one, two)] == [0o400, 0o755]
    assert stat.S_IMODE(found["w"].stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    remove(tmp_path / "made")
    assert not (tmp_path / "made").exists()
    remove(tmp_path / "made")


def test_a_path_of_the_machine_is_used_as_it_is_and_never_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    wanted = {
        "data": HostPath(tmp_path / "data", "Directory"),
        "new": HostPath(tmp_path / "a/new", "DirectoryOrCreate"),
        "file": HostPath(tmp_path / "file", "FileOrCreate"),
    }
    found = make(wanted, tmp_path / "made")
    assert found == {name: source.path for name, source in wanted.items()}
    assert found["new"].is_dir()
    assert found["file"].is_file()
    remove(tmp_path / "made")
    assert all(path.exists() for path in found.values())


@pytest.mark.parametrize("kind", ["", "Directory", "File", "Socket"])
def test_a_path_of_the_machine_that_is_not_there_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="is not there") as caught:
        make({"v": HostPath(tmp_path / "absent", kind)}, tmp_path / "made")
    assert "DirectoryOrCreate" in caught.value.hint


@pytest.mark.anyio
async def test_a_job_with_a_volume_that_cannot_be_had_is_not_started(tmp_path: Path) -> None:
    given = submission(tmp_path, spec("true"))
    template = given.job.replicas[WORKER].template
    template["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]
    with pytest.raises(UsageError, match="persistentVolumeClaim"):
        await local_jobs(tmp_path / "home").submit(given)
    assert not (tmp_path / "home/jobs/job").exists()
