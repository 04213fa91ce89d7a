"""Runtime settings of a build file in ``danlu run``: commands, mounts, sizes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from danlu.engine.container_options import parse_shm_size
from danlu.engine.runtime_mounts import resolve_mounts
from danlu.environment.runtime_settings import RuntimeMount, RuntimeSettings
from danlu.environments.named_commands import has_program, resolve_command, suggest_command
from danlu.errors import UsageError
from danlu.sandbox.prepare import expand_home
from danlu.sandbox.types import Mount
from danlu.util.paths import Paths

RUNTIME = RuntimeSettings(
    commands=(
        ("train", "printf '%s\\n'"),
        ("twice", "for i in 1 2; do echo $i; done # both\n"),
        ("where", "cd / && pwd"),
    )
)


def run_command(*args: str) -> str:
    command = resolve_command(args, RUNTIME)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_arguments_are_appended_to_a_named_command_unchanged() -> None:
    assert run_command("train", "a b", "$HOME", "'", "*") == "a b\n$HOME\n'\n*\n"


def test_a_named_command_without_arguments_is_run_unchanged() -> None:
    assert run_command("twice") == "1\n2\n"
    assert run_command("where") == "/\n"


def test_other_programs_are_left_alone() -> None:
    assert resolve_command(("python", "train"), RUNTIME) == ("python", "train")
    assert resolve_command((), RUNTIME) == ()


def test_a_name_that_does_not_exist_suggests_the_nearest() -> None:
    assert suggest_command("tran", RUNTIME) == "did you mean 'train'?"
    assert suggest_command("zzz", RUNTIME) == "the named commands are: train, twice, where"
    assert suggest_command("zzz", RuntimeSettings()) == ""


def test_programs_are_searched_in_the_directories_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/tool").touch()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "loop").symlink_to("loop")
    assert has_program([tmp_path], "tool", "/sbin:/bin")
    assert has_program([tmp_path], "./tool", "")
    assert not has_program([tmp_path], "other", "/sbin::/bin")
    assert has_program([tmp_path], "other", "/loop/bin")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path / "home")})


def test_sources_belong_to_the_project_or_the_home_directory(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    project = tmp_path / "project"
    for directory in (project / "data", tmp_path / "user/sets", tmp_path / "other"):
        directory.mkdir(parents=True)
    (project / "file").touch()
    mounts = [
        RuntimeMount("data", "/a"),
        RuntimeMount("../other", "/b"),
        RuntimeMount("~/sets", "/c"),
        RuntimeMount(str(tmp_path / "other"), "/d"),
        RuntimeMount("file", "~/e"),
    ]
    resolved = resolve_mounts(mounts, project, paths)
    assert [mount.target for mount in resolved] == ["/a", "/b", "/c", "/d", "~/e"]
    assert [mount.source and mount.source.resolve() for mount in resolved] == [
        project / "data",
        tmp_path / "other",
        tmp_path / "user/sets",
        tmp_path / "other",
        project / "file",
    ]
    assert not any(mount.readonly for mount in resolved)


def test_a_mount_below_another_one_comes_later(tmp_path: Path, paths: Paths) -> None:
    targets = ["/a//b/c", "~/x", "/b", "/home", "/a/./b", "/a"]
    mounts = [RuntimeMount(".", target) for target in targets]
    resolved = [mount.target for mount in resolve_mounts(mounts, tmp_path, paths)]
    assert resolved == ["/b", "/home", "/a", "/a/./b", "/a//b/c", "~/x"]


def test_data_directories_are_created_and_shut_to_others(tmp_path: Path, paths: Paths) -> None:
    mounts = [RuntimeMount("data://sets", "/a")]
    (mount,) = resolve_mounts(mounts, tmp_path, paths)
    assert mount.source == paths.kept_data / "sets"
    assert mount.source.stat().st_mode & 0o777 == 0o777
    assert mount.source.parent.stat().st_mode & 0o777 == 0o700
    mount.source.chmod(0o750)
    resolve_mounts(mounts, tmp_path, paths)
    assert mount.source.stat().st_mode & 0o777 == 0o750, "the user's own choice stays"


def test_a_missing_source_is_an_error_that_names_the_mount(tmp_path: Path, paths: Paths) -> None:
    with pytest.raises(UsageError, match=r"cannot mount sets at /data: .*/sets does not exist"):
        resolve_mounts([RuntimeMount("sets", "/data")], tmp_path, paths)
    with pytest.raises(UsageError, match=r"cannot mount x+ at /data: .* name too long") as caught:
        resolve_mounts([RuntimeMount("x" * 300, "/data")], tmp_path, paths)
    assert "runtime.mount()" in caught.value.hint


def test_mounts_of_included_repositories_need_permission(tmp_path: Path, paths: Paths) -> None:
    location = "https://example.org/lib/lib.envd:3"
    mounts = [RuntimeMount("~", "/a", location), RuntimeMount("data://x", "/b", location)]
    with pytest.raises(UsageError) as caught:
        resolve_mounts(mounts, tmp_path, paths)
    assert "declares 2 mounts" in caught.value.message
    assert caught.value.details == (f"{location}: ~ at /a", f"{location}: data://x at /b")
    assert "--allow-mounts" in caught.value.hint
    assert not paths.kept_data.exists()
    assert len(resolve_mounts(mounts, tmp_path, paths, allow_included=True)) == 2


def test_targets_below_the_home_directory() -> None:
    mounts = [Mount("~/a", Path("/x")), Mount("/b/~/c", Path("/x"))]
    assert [mount.target for mount in expand_home(mounts, "/home/envd")] == [
        "/home/envd/a",
        "/b/~/c",
    ]
    assert expand_home(mounts, "/")[0].target == "/a"


@pytest.mark.parametrize("text", ["0", "", "-1", "2 apples", "0B", "9999999TB"])
def test_invalid_sizes_of_shared_memory_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="--shm-size"):
        parse_shm_size(text)


def test_sizes_of_shared_memory() -> None:
    assert [parse_shm_size(text) for text in ("64MiB", "2G", "4096")] == [64 << 20, 2 * 10**9, 4096]
