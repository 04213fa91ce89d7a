from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.doctor import Check, examine
from danlu.util.paths import Paths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A home of its own; the sandbox's own checks are tested beside it."""
    monkeypatch.setattr(
        "danlu.sandbox.doctor.check", lambda paths: [("runtime", False, "none", "apt install runc")]
    )
    return Paths.of({"DANLU_HOME": str(tmp_path / "home")})


def by_name(paths: Paths) -> dict[str, Check]:
    return {one.name: one for one in examine(paths)}


def test_what_the_sandbox_lacks_comes_with_what_to_do(paths: Paths) -> None:
    assert by_name(paths)["runtime"] == Check("runtime", False, "none", "apt install runc")


def test_nothing_is_made_by_looking(paths: Paths) -> None:
    examine(paths)
    assert not paths.data.exists()


def test_a_check_that_fails_itself_is_a_finding(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(paths: Paths) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr("danlu.sandbox.doctor.check", fail)
    found = by_name(paths)["sandbox"]
    assert not found.ok
    assert "surprise" in found.detail


def test_a_wrong_configuration_is_a_finding(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.config_file.write_text("nonsense = 1")
    found = by_name(paths)["configuration"]
    assert not found.ok
    assert "nonsense" in found.detail


def test_a_store_is_counted(paths: Paths) -> None:
    from danlu.store import Store

    Store.open(paths.store).close()
    assert by_name(paths)["store"].detail.startswith("0 images")
