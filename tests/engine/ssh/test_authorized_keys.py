"""Files of public keys that may log in on an environment's SSH port."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.ssh.authorized_keys import read_authorized_keys
from danlu.errors import UsageError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJgzPLhZpjoupD097F81s/tYEkvEyUJOFMJZ8InVftXW"


def test_keys_are_read_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n\n{KEY} me@laptop with words\n  {KEY}\n")
    assert read_authorized_keys(file) == (KEY, KEY)


@pytest.mark.parametrize(
    "line",
    [
        f'command="sh" {KEY}',
        KEY.replace("ed25519", "rsa", 1),
        "ssh-ed25519",
        "ssh-ed25519 !!!",
        "ssh-ed25519 AAAA",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "\0\0",
    ],
)
def test_other_lines_are_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n{line}\n")
    with pytest.raises(UsageError, match=r"keys:2: not a public key"):
        read_authorized_keys(file)


def test_files_without_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(UsageError, match="cannot read"):
        read_authorized_keys(file)
    file.write_text("# none\n")
    with pytest.raises(UsageError, match="has no public keys"):
        read_authorized_keys(file)
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(UsageError, match="too large"):
        read_authorized_keys(file)
