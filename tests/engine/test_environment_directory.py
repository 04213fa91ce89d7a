"""The directory of an environment: its locks, and files that are damaged."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from danlu.cli.__main__ import main
from danlu.engine import environment_directory
from danlu.engine.contexts import (
    Context,
    apply_context,
    create_context,
    read_contexts,
    remove_context,
)
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    lock_environment,
)
from danlu.engine.settings import load_settings
from danlu.environments import up
from danlu.environments.manage import (
    DamagedEnvironmentView,
    EnvironmentView,
    find_own_environment,
    list_environment_views,
    rename_environment,
    take_down,
)
from danlu.environments.spec import UpOptions
from danlu.errors import StoreError, UsageError
from danlu.project.project import Project
from danlu.remote.environment_access import list_access
from danlu.sandbox.types import Mount
from tests.jobs.containers.engine_rig import paths_of


@pytest.fixture
def environment(tmp_path: Path) -> EnvironmentDirectory:
    """An environment that was created and never started."""
    created = EnvironmentDirectory(paths_of(tmp_path).environments / "digits")
    created.write_spec(EnvironmentSpec("digits", "sha256:0", datetime.now(UTC)))
    return created


def test_a_name_may_end_like_a_lock_file(tmp_path: Path) -> None:
    with lock_environment(tmp_path, "digits"):
        EnvironmentDirectory(tmp_path / "digits.lock").directory.mkdir()
        with lock_environment(tmp_path, "digits.lock"):
            pass


@pytest.mark.parametrize("content", ["", '{"phase": "Run', "\0" * 99])
def test_an_environment_whose_state_was_lost_is_stopped(
    environment: EnvironmentDirectory, tmp_path: Path, content: str
) -> None:
    (environment.directory / "state.json").write_text(content)
    (view,) = list_environment_views(paths_of(tmp_path))
    assert isinstance(view, EnvironmentView)
    assert view.state.phase == "Stopped"
    assert view.state.reason == "supervisor killed"


@pytest.mark.parametrize("reason", ["supervisor killed", "machine restarted"])
def test_an_environment_whose_supervisor_was_killed_says_so_and_since_when(
    environment: EnvironmentDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    reason: str,
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path))
    environment.write_state(EnvironmentState("Running", datetime(2020, 1, 1, tzinfo=UTC)))
    last_seen = datetime.now(UTC) - timedelta(days=3)
    os.utime(environment.state_file, (last_seen.timestamp(), last_seen.timestamp()))
    restarted = last_seen + timedelta(hours=1 if reason == "machine restarted" else -1)
    monkeypatch.setattr(environment_directory, "boot_time", lambda: restarted)
    assert main(["ps"]) == 0
    (row,) = capfd.readouterr().out.splitlines()[1:]
    cells = [cell.strip() for cell in row.split("  ") if cell]
    assert cells[:4] == ["digits", "local", f"Stopped ({reason})", "3 days ago"]
    state = environment.read_state()
    assert state.ended is not None
    assert abs(state.ended - last_seen) < timedelta(seconds=1)


def test_a_supervisor_records_that_it_is_alive(environment: EnvironmentDirectory) -> None:
    environment.renew_state()  # which has never been written, on a full disk
    environment.write_state(EnvironmentState("Running"))
    os.utime(environment.state_file, (0, 0))
    environment.renew_state()
    ended = environment.read_state().ended
    assert ended is not None
    assert datetime.now(UTC) - ended < timedelta(hours=1)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}"])
def test_a_damaged_environment_is_named_and_can_be_removed(
    environment: EnvironmentDirectory, tmp_path: Path, content: bytes
) -> None:
    environment.spec_file.write_bytes(content)
    with pytest.raises(StoreError, match="environment digits is damaged"):
        environment.read_spec()
    take_down("digits", load_settings(paths_of(tmp_path)))
    assert not environment.directory.exists()


def test_an_environment_of_another_context_is_not_selected(
    environment: EnvironmentDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path))
    for command in (("down", "digits"), ("rename", "digits", "numbers")):
        assert main([*command, "--on", "podman"]) == 2
        error = capfd.readouterr().err
        assert "environment digits is not in context podman" in error
        assert "use `--on local`" in error
        assert environment.exists()
    assert main(["down", "digits", "--on", "local"]) == 0
    assert not environment.exists()


def test_environments_of_two_clusters_are_told_apart(
    environment: EnvironmentDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path))
    paths = paths_of(tmp_path)
    for name, engine in (("test", "kubernetes:test"), ("prod", "kubernetes:prod/team")):
        create_context(name, Context(engine), paths)
    spec = msgspec.structs.replace(environment.read_spec(), engine="kubernetes", context="test")
    environment.write_spec(spec)

    def list_names(context: str) -> str:
        assert main(["ps", "-q", "--on", context]) == 0
        return capfd.readouterr().out

    contexts = ("test", "kubernetes:test", "prod", "kubernetes", "docker")
    assert [list_names(context) for context in contexts] == ["digits\n", "digits\n", "", "", ""]
    assert main(["ps", "--format", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["context"], row["engine"]) == ("test", "kubernetes")
    assert main(["stop", "digits", "--on", "prod"]) == 2
    error = capfd.readouterr().err
    assert "environment digits is not in context prod" in error
    assert "it is in context test" in error
    # What runs in a context stays when that is removed, and keeps its name.
    remove_context("test", paths)
    assert list_names("prod") == ""
    # Earlier versions recorded no context.
    environment.write_spec(msgspec.structs.replace(spec, context=""))
    assert [list_names(context) for context in ("prod", "docker")] == ["digits\n", ""]


def test_an_environment_stays_in_its_cluster(
    environment: EnvironmentDirectory, tmp_path: Path
) -> None:
    paths = paths_of(tmp_path)
    spec = msgspec.structs.replace(
        environment.read_spec(),
        engine="kubernetes",
        context="kubernetes:test",
        project=str(tmp_path),
    )
    environment.write_spec(spec)
    settings = apply_context(load_settings(paths), Context("kubernetes:prod"), "kubernetes:prod")
    with pytest.raises(UsageError, match="environment digits is in context kubernetes:test"):
        up.start_environment(
            tmp_path,
            settings=settings,
            options=UpOptions(name="digits", engine="kubernetes"),
            progress=lambda event: None,
            image="box:1",
        )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_damaged_environment_is_listed_among_the_others(
    environment: EnvironmentDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    form: str,
) -> None:
    paths = paths_of(tmp_path)
    monkeypatch.setenv("DANLU_HOME", str(tmp_path))
    damaged = EnvironmentDirectory(paths.environments / "broken")
    damaged.directory.mkdir()
    damaged.spec_file.write_text("{")
    assert main(["ps", "--format", form]) == 0
    out, err = capfd.readouterr()
    if form == "json":
        first, second = json.loads(out)
        assert (first["name"], first["phase"]) == ("broken", "Damaged")
        assert set(first) == {*second, "hint"}
        reason, hint = first["reason"], first["hint"]
    else:
        rows = [line.split()[:3] for line in out.splitlines()]
        assert rows[1:] == [["broken", "local", "Damaged"], ["digits", "local", "Stopped"]]
        reason = hint = err
    assert "environment broken is damaged" in reason
    assert "`danlu down broken` removes it" in hint


def test_a_damaged_environment_does_not_hide_the_others_from_other_machines(
    environment: EnvironmentDirectory, tmp_path: Path
) -> None:
    paths = paths_of(tmp_path)
    damaged = EnvironmentDirectory(paths.environments / "broken")
    damaged.directory.mkdir()
    damaged.spec_file.write_text("{")
    assert [access.name for access in list_access(paths).environments] == ["digits"]


def test_files_that_an_interrupted_removal_left_are_removed_by_the_next(
    environment: EnvironmentDirectory, tmp_path: Path
) -> None:
    left = environment.directory.with_name(".removed-other-1")
    (left / "upper").mkdir(parents=True)
    take_down("digits", load_settings(paths_of(tmp_path)))
    assert not left.exists()


def spec_of(name: str) -> EnvironmentSpec:
    return EnvironmentSpec(name, "sha256:0", datetime.now(UTC), project=".")


@pytest.mark.parametrize("left", [(), ("supervisor.lock", "ssh/client_key"), ("upper/",)])
def test_a_directory_without_a_spec_does_not_block_its_name(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    settings = load_settings(paths_of(tmp_path))
    for name in ("first", "second"):
        directory = settings.paths.environments / name
        directory.mkdir(parents=True)
        for path in left:
            (directory / path).parent.mkdir(exist_ok=True)
            (directory / path).mkdir() if path.endswith("/") else (directory / path).touch()
    first = EnvironmentDirectory(settings.paths.environments / "first")
    assert list(list_environment_views(settings.paths)) == []
    with lock_environment(settings.paths.environments, "first"):
        up._create_environment(first, spec_of("first"), settings)
    assert sorted(path.name for path in first.directory.iterdir()) == ["spec.json"]
    rename_environment("first", "second", settings)
    assert [view.name for view in list_environment_views(settings.paths)] == ["second"]


def test_files_without_a_spec_are_kept_until_they_are_removed(tmp_path: Path) -> None:
    settings = load_settings(paths_of(tmp_path))
    damaged = EnvironmentDirectory(settings.paths.environments / "digits")
    (damaged.upper / "root").mkdir(parents=True)
    (view,) = list_environment_views(settings.paths)
    assert isinstance(view, DamagedEnvironmentView)
    assert "spec.json is missing" in view.error.message
    with pytest.raises(StoreError, match=r"digits is damaged: .* is missing"):
        up._find_spec(damaged)
    take_down("digits", settings)
    assert not damaged.directory.exists()


def test_directories_of_a_killed_up_are_removed_by_the_next(tmp_path: Path) -> None:
    settings = load_settings(paths_of(tmp_path))
    root = settings.paths.environments
    names = (".new.digits.0123456789ab", ".new.a.b.0123456789ab", ".new.0123456789ab")
    busy = root / ".new.busy.0123456789ab"
    for path in (busy, *(root / name for name in names)):
        EnvironmentDirectory(path).write_spec(spec_of("x"))
    with lock_environment(root, "busy"), lock_environment(root, "digits"):
        digits = EnvironmentDirectory(root / "digits")
        up._create_environment(digits, spec_of("digits"), settings)
    left = {path.name for path in root.iterdir() if path.is_dir()}
    assert left == {"digits", busy.name}


def make_project(directory: Path) -> Project:
    directory.mkdir(parents=True)
    (directory / "build.envd").write_text("def build():\n    base(dev=True)\n")
    return Project.open(None, directory=directory)


def test_mounts_that_an_older_version_recorded_are_read(tmp_path: Path) -> None:
    environment = EnvironmentDirectory(tmp_path / "box")
    environment.directory.mkdir()
    mount = Mount("/data", tmp_path / "data", readonly=True)
    environment.write_spec(msgspec.structs.replace(spec_of("box"), mounts=(mount,)))
    recorded = json.loads(environment.spec_file.read_text())
    recorded["mounts"] = [{"source": str(mount.source), "target": "/data", "readonly": True}]
    environment.spec_file.write_text(json.dumps(recorded))
    assert environment.read_spec().mounts == (mount,)


def test_a_renamed_environment_is_still_that_of_its_project(tmp_path: Path) -> None:
    settings = load_settings(paths_of(tmp_path))
    project = make_project(tmp_path / "digits")
    root = settings.paths.environments
    for name, function in (("digits", "build"), ("digits-gpu", "gpu")):
        spec = msgspec.structs.replace(
            spec_of(name), project=str(project.directory), target=f"build.envd:{function}"
        )
        EnvironmentDirectory(root / name).write_spec(spec)
    assert find_own_environment(project, settings.paths).name == "digits"
    assert rename_environment("digits", "letters", settings) == []
    assert find_own_environment(project, settings.paths).name == "letters"
    # Its host is known before its next start.
    assert "Host letters.danlu" in (settings.paths.config / "ssh.d/letters.conf").read_text()
    second = msgspec.structs.replace(spec_of("second"), project=str(project.directory))
    EnvironmentDirectory(root / "second").write_spec(second)
    with pytest.raises(UsageError, match="has several environments: letters, second"):
        find_own_environment(project, settings.paths)


def test_a_project_does_not_find_the_environment_of_another_with_its_name(tmp_path: Path) -> None:
    settings = load_settings(paths_of(tmp_path))
    project, other = make_project(tmp_path / "digits"), make_project(tmp_path / "x" / "digits")
    spec = msgspec.structs.replace(spec_of("digits"), project=str(project.directory))
    EnvironmentDirectory(settings.paths.environments / "digits").write_spec(spec)
    with pytest.raises(UsageError, match=f"environment digits belongs to {project.directory}"):
        find_own_environment(other, settings.paths)
    with pytest.raises(UsageError, match=r"no environment of .* found"):
        find_own_environment(make_project(tmp_path / "letters"), settings.paths)


def test_an_environment_does_not_take_the_host_of_one_in_a_context(tmp_path: Path) -> None:
    settings = load_settings(paths_of(tmp_path))
    root = settings.paths.environments
    existing = EnvironmentDirectory(root / "old.box")
    existing.write_spec(spec_of("old.box"))
    create_context("box", Context("ssh://box"), settings.paths)
    create_context("here", Context("embedded"), settings.paths)
    with pytest.raises(UsageError, match=r"a.box.danlu belongs to environment a of context box"):
        up._read_existing(EnvironmentDirectory(root / "a.box"), str(tmp_path), settings.paths)
    with pytest.raises(UsageError, match=r"a.box.danlu belongs to"):
        rename_environment("old.box", "a.box", settings)
    assert up._read_existing(existing, ".", settings.paths) is not None
    rename_environment("old.box", "a.here", settings)
    assert [view.name for view in list_environment_views(settings.paths)] == ["a.here"]


def test_a_context_does_not_take_the_host_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path))
    paths = paths_of(tmp_path)
    EnvironmentDirectory(paths.environments / "a.box").write_spec(spec_of("a.box"))
    assert main(["context", "create", "box", "--engine", "ssh://box"]) == 2
    assert "environment a.box of this machine has an SSH host of context box" in (
        capfd.readouterr().err
    )
    assert read_contexts(paths).contexts == {}
