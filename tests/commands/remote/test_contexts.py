"""Contexts: where commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.remote.contexts import (
    Context,
    SshAddress,
    create_context,
    find_current_context,
    parse_ssh_url,
    read_contexts,
    remove_context,
    use_context,
)
from danlu.commands.remote.remote_command import runs_remotely
from danlu.commands.remote.remote_host import RemoteHost
from danlu.errors import UsageError
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
    assert find_current_context(paths, {}) == ("default", None)
    create_context("box", Context("ssh://box"), paths)
    create_context("local", Context("docker"), paths)
    use_context("box", paths)
    assert find_current_context(paths, {}) == ("box", Context("ssh://box"))
    assert find_current_context(paths, {"DANLU_CONTEXT": "local"}) == ("local", Context("docker"))
    assert find_current_context(paths, {"DANLU_CONTEXT": "default"}) == ("default", None)
    remove_context("box", paths)
    assert find_current_context(paths, {}) == ("default", None)
    assert list(read_contexts(paths).contexts) == ["local"]


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
