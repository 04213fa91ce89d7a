from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.ssh_config import SshConfiguration, render_host
from danlu.errors import OutsideError, UsageError

USER_TEXT = b"# mine\r\nHost *\n\tServerAliveInterval 9\nInclude other"
PROGRAM = ("/opt/danlu/bin/danlu",)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "home" / ".ssh" / "config"
    path.parent.mkdir(parents=True)
    path.write_bytes(USER_TEXT)
    path.chmod(0o640)
    return path


@pytest.fixture
def configuration(tmp_path: Path, user_file: Path) -> SshConfiguration:
    return SshConfiguration(tmp_path / "danlu config" / "ssh.d", user_file)


def keys_in(directory: Path) -> SshKeys:
    return SshKeys(directory / "keys")


def test_twenty_times_leave_one_include_before_the_users_bytes(
    configuration: SshConfiguration, user_file: Path, tmp_path: Path
) -> None:
    for _ in range(20):
        configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)
        configuration.remove_host("digits")
    added = user_file.read_bytes().removesuffix(USER_TEXT)
    assert added == f"# Environments of danlu\n{configuration.include_line()}\n\n".encode()
    assert user_file.stat().st_mode & 0o777 == 0o640
    assert list((tmp_path / "danlu config" / "ssh.d").glob("*.conf")) == []


def test_backup_has_the_previous_configuration(
    configuration: SshConfiguration, user_file: Path, tmp_path: Path
) -> None:
    configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)
    user_file.write_bytes(b"changed since\n")
    configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)
    assert (user_file.parent / "config.danlu-backup").read_bytes() == USER_TEXT
    assert user_file.read_bytes().endswith(b"changed since\n")


def test_linked_file_is_kept_as_a_link(
    configuration: SshConfiguration, user_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles"
    user_file.rename(target)
    user_file.symlink_to(target)
    configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)
    assert user_file.is_symlink()
    assert target.read_bytes().endswith(USER_TEXT)
    assert configuration.include_line().encode() in target.read_bytes()


def test_missing_file_is_created_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "home" / ".ssh" / "config"
    configuration = SshConfiguration(tmp_path / "ssh.d", file)
    configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert not list(file.parent.glob("*backup*"))


def test_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    configuration = SshConfiguration(tmp_path / "ssh.d", tmp_path / "file" / "config")
    with pytest.raises(OutsideError, match="cannot write the SSH configuration: Not a directory"):
        configuration.add_host("digits", keys_in(tmp_path), program=PROGRAM)


@pytest.mark.parametrize("character", ['"', "'", "\\", "$", "\n"])
def test_path_that_openssh_cannot_quote_is_refused(tmp_path: Path, character: str) -> None:
    with pytest.raises(UsageError, match="cannot be written into an SSH configuration"):
        render_host("digits", SshKeys(Path(f"/a{character}b")), program=PROGRAM)


@pytest.mark.real
@pytest.mark.needs("ssh")
def test_openssh_reads_the_written_configuration(
    configuration: SshConfiguration, user_file: Path, tmp_path: Path
) -> None:
    keys = SshKeys(tmp_path / "100% of keys")
    program = ("/opt/with space/100%/danlu", "-P")
    configuration.add_host("digits", keys, program=program)
    output = subprocess.run(
        ["ssh", "-G", "-F", str(user_file), "digits.danlu"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path / "home")},
    ).stdout.splitlines()
    settings = dict(line.split(" ", 1) for line in output if " " in line)
    assert settings["hostname"] == "digits.danlu"
    assert settings["user"] == "danlu"
    assert settings["identityfile"] == str(keys.client_key).replace("%", "%%")
    assert settings["userknownhostsfile"] == str(keys.known_hosts)
    assert settings["stricthostkeychecking"] in ("true", "yes")
    assert settings["identitiesonly"] == "yes"
    assert settings["forwardagent"] == "no"
    # The first value wins, and ours is read before the user's.
    assert settings["serveraliveinterval"] == "5"
    assert settings["proxycommand"] == "'/opt/with space/100%%/danlu' -P ssh --stdio digits"


def test_keys_are_created_once(tmp_path: Path) -> None:
    keys = SshKeys(tmp_path / "ssh")
    keys.create_missing("digits")
    before = {path.name: path.read_bytes() for path in keys.directory.iterdir()}
    keys.create_missing("digits")
    assert {path.name: path.read_bytes() for path in keys.directory.iterdir()} == before
    assert set(before) == {"client_key", "client_key.pub", "host_key", "known_hosts", "lock"}


def test_two_environments_have_no_key_in_common(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        keys = SshKeys(tmp_path / name)
        keys.create_missing(name)
        contents += [keys.client_key.read_bytes(), keys.host_key.read_bytes()]
    assert len(set(contents)) == 4
