"""Data from another machine about its environments, which becomes SSH configuration."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.settings import load_settings
from danlu.errors import OutsideError
from danlu.remote.environment_access import (
    AccessList,
    RemoteEnvironment,
    list_access,
    parse_access_list,
)
from danlu.remote.ssh_access import ContextHosts
from danlu.util.paths import Paths


def make_environment(paths: Paths, name: str) -> EnvironmentDirectory:
    environment = EnvironmentDirectory(paths.environments / name)
    environment.directory.mkdir(parents=True)
    environment.write_spec(EnvironmentSpec(name, "sha256:1", datetime.now(UTC), project="/p"))
    return environment


@pytest.fixture
def access(tmp_path: Path) -> AccessList:
    """Return the answer of a machine with the environment ``digits``."""
    existing = Paths.of({"DANLU_HOME": str(tmp_path / "there")})
    make_environment(existing, "digits")
    return list_access(existing)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContextHosts:
    """The hosts of the context ``box`` on this machine."""
    monkeypatch.setenv("DANLU_SSH_CONFIG", str(tmp_path / "ssh_config"))
    return ContextHosts("box", load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "here")})))


def change_first(access: AccessList, **changes: str) -> bytes:
    first = msgspec.structs.replace(access.environments[0], **changes)
    return msgspec.json.encode(AccessList((first,)))


def test_answer_of_a_machine_is_parsed(access: AccessList) -> None:
    assert parse_access_list(msgspec.json.encode(access), "box") == access
    assert access.environments[0].directory == "/workspace"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../etc"},
        {"name": "a\n    ProxyCommand rm"},
        {"directory": "/workspace --install-extension evil"},
        {"directory": "workspace"},
        {"host_key": "ssh-ed25519 AAAA\n* ssh-ed25519 BBBB"},
        {"host_key": "ssh-rsa AAAA"},
        {"client_key": "not a key"},
    ],
)
def test_values_unsafe_for_configuration_are_rejected(
    access: AccessList, changes: dict[str, str]
) -> None:
    with pytest.raises(OutsideError, match="box"):
        parse_access_list(change_first(access, **changes), "box")


def test_text_that_is_not_a_list_is_refused() -> None:
    with pytest.raises(OutsideError, match="cannot list the environments of box"):
        parse_access_list(b"Welcome to box!\n", "box")


def test_hosts_are_added_once_and_removed(
    access: AccessList, hosts: ContextHosts, tmp_path: Path
) -> None:
    assert hosts.update(access.environments) == ["digits.box.danlu"]
    assert hosts.update(access.environments) == []
    file = tmp_path / "here/config/ssh.d/digits.box.conf"
    assert "DANLU_CONTEXT=box" in file.read_text()
    key = tmp_path / "here/contexts/box/ssh/digits/client_key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert hosts.update([]) == []
    assert not file.exists()
    assert not key.exists()


def test_an_environment_of_this_machine_keeps_its_host(
    access: AccessList, hosts: ContextHosts, tmp_path: Path
) -> None:
    make_environment(Paths.of({"DANLU_HOME": str(tmp_path / "here")}), "digits.box")
    assert hosts.update(access.environments) == []
    hosts.remove_all()
    assert not (tmp_path / "here/config/ssh.d/digits.box.conf").exists()


def test_a_new_key_replaces_the_old_one(
    access: AccessList, hosts: ContextHosts, tmp_path: Path
) -> None:
    hosts.update(access.environments)
    (old,) = access.environments
    new: RemoteEnvironment = msgspec.structs.replace(old, host_key="ssh-ed25519 NEW=")
    hosts.update([new])
    known_hosts = tmp_path / "here/contexts/box/ssh/digits/known_hosts"
    assert known_hosts.read_text() == "digits.box.danlu ssh-ed25519 NEW=\n"
    assert f"UserKnownHostsFile {known_hosts}\n" in hosts.render("digits")
