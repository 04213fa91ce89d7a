"""Locked system packages, installed on a base by its own apt."""

from __future__ import annotations

from typing import Any

import pytest

from .test_bootstrap import Make, make

__all__ = ["make"]
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def heavy(make: Make) -> dict[str, Any]:
    """Packages with users, services, triggers, alternatives, set-id files and debconf questions."""
    return make(
        "openssh-server", "dbus", "sudo", "tzdata", "fontconfig",
        script="id sshd; id messagebus; apt-mark showauto | grep -c .; "
        "apt-mark showmanual | grep -x -e sudo -e dbus; stat -c %a /usr/bin/sudo",
    )  # fmt: skip


def test_users_marks_and_set_id_files_are_right(heavy: dict[str, Any]) -> None:
    text = "\n".join(heavy["printed"])
    assert "(sshd)" in text
    assert "(messagebus)" in text
    assert "sudo" in heavy["printed"]
    assert heavy["printed"][-1] == "4755"


def test_no_service_is_started_and_no_key_created(heavy: dict[str, Any]) -> None:
    assert not [name for name in heavy["files"][1] if "ssh_host_" in name]
    assert not [line for line in heavy["log"] if "Starting" in line]


@pytest.mark.slow
def test_a_heavy_set_is_reproducible_too(make: Make, heavy: dict[str, Any]) -> None:
    again = make("openssh-server", "dbus", "sudo", "tzdata", "fontconfig", TZ="America/Lima")
    assert again["layers"] == heavy["layers"]
