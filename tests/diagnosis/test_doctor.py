from __future__ import annotations

from pathlib import Path

import pytest

from danlu.diagnosis.doctor import DoctorCheck, run_checks
from danlu.engine.contexts import LOCAL, Context
from danlu.sources.apt.host_config import HostApt
from danlu.sources.apt.sources_list import SourceEntry
from danlu.util.paths import Paths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Use a separate home; the checks of the sandbox are tested with the sandbox."""
    monkeypatch.setattr(
        "danlu.sandbox.doctor.run_checks",
        lambda paths: [("runtime", False, "none", "apt install runc")],
    )
    return Paths.of({"DANLU_HOME": str(tmp_path / "home")})


def index_by_name(paths: Paths) -> dict[str, DoctorCheck]:
    return {path.name: path for path in run_checks(paths, LOCAL)}


def test_failed_sandbox_checks_have_a_fix(paths: Paths) -> None:
    assert index_by_name(paths)["runtime"] == DoctorCheck(
        "runtime", False, "none", "apt install runc"
    )


def test_checks_create_nothing(paths: Paths) -> None:
    run_checks(paths, LOCAL)
    assert not paths.data.exists()


def test_error_in_a_check_fails_it(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(paths: Paths) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr("danlu.sandbox.doctor.run_checks", fail)
    result = index_by_name(paths)["sandbox"]
    assert not result.ok
    assert "surprise" in result.detail


def test_invalid_configuration_fails_a_check(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.config_file.write_text("nonsense = 1")
    result = index_by_name(paths)["configuration"]
    assert not result.ok
    assert "nonsense" in result.detail


def test_the_distributions_with_a_mirror_are_named(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SourceEntry(("http://mirror.example/ubuntu",), "noble", ("main",))

    async def read_ubuntu() -> HostApt:
        return HostApt(entries=(entry,))

    monkeypatch.setattr("danlu.diagnosis.doctor.read_host_apt", read_ubuntu)
    check = index_by_name(paths)["apt mirrors"]
    assert (check.ok, check.optional) == (True, True)
    assert check.detail == 'Ubuntu can be a base; base(os="debian…") needs [mirrors.debian]'
    paths.config.mkdir(parents=True)
    paths.config_file.write_text('[mirrors.debian]\nurls = ["http://mirror.example/debian"]')
    assert index_by_name(paths)["apt mirrors"].detail == "Debian and Ubuntu can be a base"


def test_store_check_counts_images(paths: Paths) -> None:
    from danlu.store import Store

    Store.open(paths.store).close()
    assert index_by_name(paths)["store"].detail.startswith("0 images")


def test_what_the_context_needs_is_not_optional(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    for context, is_optional in ((LOCAL, True), (Context("docker"), False)):
        check = next(check for check in run_checks(paths, context) if check.name == "Docker")
        assert not check.ok
        assert check.optional == is_optional
