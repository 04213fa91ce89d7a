"""Transfers to programs that stop for good end with one message, and the program with them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from danlu.engine.docker import changes, images
from danlu.engine.docker.command import DockerCommand
from danlu.engine.settings import load_settings
from danlu.errors import TemporaryError
from danlu.remote.program_transfer import _send_files
from danlu.remote.project_sync import RemoteProject
from danlu.remote.remote_host import RemoteHost
from danlu.sandbox import userns
from danlu.sandbox.layer_view import LayerView
from danlu.store import Store
from danlu.util import process_activity
from danlu.util.paths import Paths
from tests.waiting import wait_for

#: Records its process id, and then does nothing for good.
STUCK = """#!/bin/sh
case "$*" in info*) echo '[]'; exit;; diff*) exit;; esac
echo $$ >"{place}/stuck"
exec sleep infinity
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a ``docker`` and an ``ssh`` that get stuck; they are first on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "ssh"):
        (programs / name).write_text(STUCK.format(place=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(process_activity, "STUCK_SECONDS", 2.0)
    monkeypatch.setattr(images, "_UNPACK_SECONDS", 2.0)
    return tmp_path


def has_ended(place: Path) -> bool:
    status = Path("/proc", (place / "stuck").read_text().strip(), "status")
    return not status.exists() or "State:\tZ" in status.read_text()


def test_project_is_not_sent_for_ever(place: Path) -> None:
    project = place / "project"
    project.mkdir()
    paths = Paths.of({"DANLU_HOME": str(place / "home")})
    copy = RemoteProject(RemoteHost("ssh://box"), project, paths)
    for transfer in (copy.send_changes, copy.fetch_changes):
        with pytest.raises(TemporaryError, match="ssh did nothing for"):
            transfer()
        wait_for(lambda: has_ended(place))


@pytest.mark.parametrize("size", [10, 10_000_000], ids=["small", "larger than a pipe"])
def test_danlu_is_not_copied_for_ever(place: Path, size: int) -> None:
    file = place / "file"
    file.write_bytes(os.urandom(size))
    with pytest.raises(TemporaryError, match="ssh did nothing for"):
        _send_files(RemoteHost("ssh://box"), [(file, "file")])
    wait_for(lambda: has_ended(place))


@pytest.mark.parametrize("size", [10, 10_000_000], ids=["small", "larger than a pipe"])
def test_image_is_not_loaded_for_ever(
    place: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(userns, "enter", lambda paths: None)
    settings = load_settings(Paths.of({"DANLU_HOME": str(place / "home")}))
    with Store.open(settings.paths.store) as store:
        config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}'
        image = store.put_image(config + b" " * size + b"}", [])
    with pytest.raises(TemporaryError, match="docker did nothing for"):
        images._load_archive(
            DockerCommand("docker"),
            image.digest,
            "name",
            settings.paths,
            (),
            lambda done, total: None,
        )
    wait_for(lambda: has_ended(place))


def test_changes_of_a_container_are_not_read_for_ever(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SimpleNamespace(mounts=(), account=None, earlier_targets=())
    monkeypatch.setattr(changes, "read_settings", lambda environment: settings)
    monkeypatch.setattr(changes, "container_name", lambda environment: "box")
    with (
        pytest.raises(TemporaryError, match="docker did nothing for"),
        changes.open_container_changes(DockerCommand("docker"), Mock()) as write_changes,
    ):
        write_changes(place / "changes", LayerView([]))
    wait_for(lambda: has_ended(place))
