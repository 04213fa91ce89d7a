"""Contexts: where commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.contexts import (
    ClusterAddress,
    Context,
    SshAddress,
    apply_context,
    create_context,
    find_current_context,
    list_built_in_contexts,
    parse_ssh_url,
    read_contexts,
    remove_context,
    use_context,
)
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.remote.remote_command import runs_remotely
from danlu.remote.remote_host import RemoteHost
from danlu.util.config import Configuration, KubernetesConfig
from danlu.util.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ssh://box", SshAddress("box")),
        ("ssh://me@box.example.org", SshAddress("box.example.org", "me")),
        ("ssh://me@box:2222/", SshAddress("box", "me", "2222")),
        ("ssh://[::1]:22", SshAddress("::1", "", "22")),
    ],
)
def test_addresses_are_parsed(url: str, address: SshAddress) -> None:
    assert parse_ssh_url(url) == address


def test_the_command_to_try_has_user_and_port() -> None:
    assert parse_ssh_url("ssh://me@box:2222").command == "ssh -p 2222 me@box"
    assert parse_ssh_url("ssh://box").command == "ssh box"


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=evil",
        "ssh://-l@box",
        "ssh://a b",
        "ssh://box:99999",
        "ssh://box/path",
        "ssh://me:secret@box",
        "ssh://",
        "https://box",
        "box",
    ],
)
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_ssh_url(url)


def test_the_current_context_can_be_chosen_and_removed(paths: Paths) -> None:
    local, box = ("local", Context("embedded")), ("box", Context("ssh://box"))
    assert find_current_context(paths, {}) == local
    create_context("box", Context("ssh://box"), paths)
    create_context("team", Context("kubernetes:cluster/dev"), paths)
    use_context("box", paths)
    assert find_current_context(paths, {}) == box
    assert find_current_context(paths, {"DANLU_CONTEXT": "local"}) == local
    team = find_current_context(paths, {"DANLU_CONTEXT": "local"}, chosen="team")
    assert team == ("team", Context("kubernetes:cluster/dev"))
    remove_context("box", paths)
    assert find_current_context(paths, {}) == local
    assert list(read_contexts(paths).contexts) == ["team"]


def test_engines_of_this_machine_and_clusters_are_contexts_without_being_created(
    paths: Paths,
) -> None:
    for name in ("docker", "podman", "kubernetes"):
        assert find_current_context(paths, {}, chosen=name) == (name, Context(name))
        with pytest.raises(UsageError, match="exists already"):
            create_context(name, Context("ssh://box"), paths)
        with pytest.raises(UsageError, match="always exists"):
            remove_context(name, paths)
    address = "kubernetes:arn:aws:eks:1:cluster/x"
    _, found = find_current_context(paths, {}, chosen=address)
    assert found.cluster == ClusterAddress("arn:aws:eks:1:cluster/x", "")
    with pytest.raises(UsageError, match="invalid namespace"):
        find_current_context(paths, {}, chosen="kubernetes:a/B_")


def test_files_of_earlier_versions_are_read(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    contexts = '{"docker": {"engine": "docker-container://danlu", "mounts": ["/home"]}}'
    (paths.config / "contexts.json").write_text(
        '{"current": "default", "contexts": %s}' % contexts  # noqa: UP031
    )
    assert find_current_context(paths, {}) == ("local", Context("embedded"))
    # Hosts of SSH have this name in their commands.
    assert find_current_context(paths, {"DANLU_CONTEXT": "default"})[0] == "local"
    assert find_current_context(paths, {}, chosen="docker")[1].is_container
    use_context("default", paths)
    assert read_contexts(paths).current == "local"


def test_docker_runs_danlu_where_linux_does_not() -> None:
    docker = list_built_in_contexts("darwin")["docker"]
    assert docker.is_container
    assert docker.is_remote
    assert not list_built_in_contexts("linux")["docker"].is_remote


def test_a_cluster_replaces_what_is_configured(paths: Paths) -> None:
    config = Configuration(kubernetes=KubernetesConfig("own", "team", "registry.example"))
    settings = apply_context(Settings(paths, config), Context("kubernetes:other"))
    assert settings.engine == "kubernetes"
    assert settings.config.kubernetes == KubernetesConfig("other", "team", "registry.example")
    assert apply_context(Settings(paths, config), Context("podman")).engine == "podman"


def test_unknown_and_duplicate_contexts_are_refused(paths: Paths) -> None:
    create_context("box", Context("podman"), paths)
    with pytest.raises(UsageError, match="exists already"):
        create_context("box", Context("docker"), paths)
    for name, engine in (("Box", "docker"), ("default", "docker"), ("other", "dokcer")):
        with pytest.raises(UsageError, match="invalid"):
            create_context(name, Context(engine), paths)
    with pytest.raises(UsageError, match="context bxo not found") as caught:
        use_context("bxo", paths)
    assert "box" in caught.value.hint


@pytest.mark.parametrize(("first", "second"), [("c", "b.c"), ("b.c", "c")])
def test_contexts_whose_environments_could_share_a_host_are_refused(
    paths: Paths, first: str, second: str
) -> None:
    create_context(first, Context("ssh://one"), paths)
    with pytest.raises(UsageError, match=f"SSH hosts of context {second} could be confused with"):
        create_context(second, Context("ssh://two"), paths)
    create_context(second, Context("embedded"), paths)  # which has no hosts of its own
    create_context("bc", Context("ssh://three"), paths)


def test_a_damaged_file_is_named(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    (paths.config / "contexts.json").write_text("{")
    with pytest.raises(UsageError, match=r"contexts\.json"):
        find_current_context(paths, {})


def test_local_commands_run_on_this_machine() -> None:
    assert runs_remotely("up")
    assert not runs_remotely("lock")
    assert not runs_remotely("add")
    assert runs_remotely("login")
    assert runs_remotely("ssh")
    assert not runs_remotely("code")


def test_the_host_follows_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = RemoteHost("ssh://me@box:2222").command("echo 'a b'")
    assert words[-3:-1] == ["--", "box"]
    assert words[words.index("-l") : words.index("-l") + 4] == ["-l", "me", "-p", "2222"]
