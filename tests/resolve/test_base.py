"""Resolve the base system from small archives with this machine's own apt."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import anyio
import pytest

from danlu.environment.lock import LockedBase
from danlu.environment.types import AptSource
from danlu.errors import OutsideError, UsageError
from danlu.graph.ops import DebPackage, Platform
from danlu.resolve import system
from danlu.resolve.system import dpkg_status_path, package_set_digest, resolve_base
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.fakes.apt import AptArchive, ArchivePackage, minimal_packages

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="needs apt and dpkg"
)

#: That of the archive's Release file.
RELEASED = 1717243200


class BaseScenario:
    def __init__(self, root: Path) -> None:
        self.archive = AptArchive(root / "archive")
        self.archive.add("bookworm", *minimal_packages())
        self.paths = Paths.of({"DANLU_HOME": str(root / "home")})

    def base(
        self, *, refresh: bool = True, offline: bool = False, keep: tuple[DebPackage, ...] = ()
    ) -> LockedBase:
        return anyio.run(
            functools.partial(
                resolve_base,
                "debian12",
                Platform(),
                # copy: and not file:, so that lists are files and not links.
                apt=AptSource(
                    self.archive.sources_line("bookworm", uri=f"copy:{self.archive.root}")
                ),
                paths=self.paths,
                config=Configuration(),
                refresh=refresh,
                offline=offline,
                keep=keep,
            )
        )


@pytest.fixture
def world(tmp_path: Path) -> BaseScenario:
    return BaseScenario(tmp_path)


def versions(base: LockedBase) -> dict[str, str]:
    return {deb.name: deb.version for deb in base.packages}


def test_a_base_is_the_essential_packages_apt_and_passwd(world: BaseScenario) -> None:
    base = world.base()
    assert list(versions(base)) == ["apt", "base-files", "dpkg", "libc6", "passwd"]
    assert (base.distribution, base.codename, base.libc) == ("debian12", "bookworm", "glibc 2.36")


def test_a_merged_usr_is_used_if_the_release_has_it(world: BaseScenario) -> None:
    world.archive.add("bookworm", ArchivePackage("usr-is-merged"), ArchivePackage("usrmerge"))
    assert "usr-is-merged" in versions(world.base())
    assert "usrmerge" not in versions(world.base())


def test_unchanged_lists_are_requested_once(
    world: BaseScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.base()
    monkeypatch.setattr(system, "resolve_install", None)
    assert world.base(refresh=False) == first
    with pytest.raises(TypeError):
        world.base(refresh=True)


def test_the_epoch_is_the_archives_date(world: BaseScenario) -> None:
    assert world.base().epoch == RELEASED


def test_the_same_packages_keep_the_epoch_they_first_had(world: BaseScenario) -> None:
    base = world.base()
    release = world.archive.root / "dists/bookworm/Release"
    release.write_text(release.read_text().replace("2024", "2025"))
    assert world.base() == base
    world.archive.add("bookworm", ArchivePackage("apt", "2.6.2", "amd64"))
    release.write_text(release.read_text().replace("2024", "2025"))
    assert world.base().epoch > base.epoch


def test_a_damaged_epoch_cache_is_rewritten(world: BaseScenario) -> None:
    world.base()
    notes = world.paths.cache / "apt" / "epochs.json"
    notes.write_text("{ damaged")
    base = world.base()
    assert json.loads(notes.read_text()) == {package_set_digest(base.packages): base.epoch}


def test_kept_packages_are_not_upgraded(world: BaseScenario) -> None:
    before = world.base()
    world.archive.add("bookworm", ArchivePackage("apt", "2.6.2", "amd64"))
    assert world.base(keep=before.packages) == before
    assert versions(world.base())["apt"] == "2.6.2"


def test_a_new_essential_package_is_seen_when_the_lists_are_fetched(world: BaseScenario) -> None:
    world.base()
    world.archive.add("bookworm", ArchivePackage("new", fields={"Essential": "yes"}))
    assert "new" not in versions(world.base(refresh=False))
    assert "new" in versions(world.base(refresh=True))


def test_the_dpkg_status_of_the_base_is_kept_for_later_packages(world: BaseScenario) -> None:
    base = world.base()
    text = dpkg_status_path(world.paths, base.packages).read_text()
    assert text.count("Status: install ok installed\n") == len(base.packages)
    assert "Filename:" not in text


def test_offline_uses_cached_lists_and_reports_missing_ones(world: BaseScenario) -> None:
    with pytest.raises(OutsideError, match="offline"):
        world.base(offline=True)
    base = world.base()
    shutil.rmtree(world.archive.root)
    assert world.base(offline=True, refresh=False) == base


def test_an_unknown_release_is_refused(world: BaseScenario) -> None:
    with pytest.raises(UsageError, match="debian3"):
        anyio.run(
            functools.partial(
                resolve_base,
                "debian3",
                Platform(),
                apt=None,
                paths=world.paths,
                config=Configuration(),
            )
        )


def test_another_architecture_is_resolved_from_its_own_lists(world: BaseScenario) -> None:
    arm = [
        ArchivePackage(package.name, package.version, "arm64", package.fields)
        for package in minimal_packages()
        if package.architecture != "all"
    ]
    world.archive.add("trixie", *arm)
    base = anyio.run(
        functools.partial(
            resolve_base,
            "debian13",
            Platform(architecture="arm64"),
            apt=AptSource(world.archive.sources_line("trixie")),
            paths=world.paths,
            config=Configuration(),
        )
    )
    assert {deb.architecture for deb in base.packages} == {"arm64"}
