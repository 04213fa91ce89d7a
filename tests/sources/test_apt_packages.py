"""Resolve and download packages from small archives with this machine's real apt."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from danlu.environment.types import AptSource
from danlu.errors import ChecksumError, LockError, OutsideError, ResolveError
from danlu.graph.ops import DebPackage
from danlu.sources.apt import (
    DebCache,
    PrivateApt,
    fetch_debs,
    find_release,
    private_apt_for,
    write_repository,
)
from danlu.sources.apt.errors import parse_providers, parse_unknown_packages, suggest_names
from danlu.sources.apt.package_index import PackageRecord
from danlu.sources.apt.private_apt import LIST_MAX_AGE, UNUSED_MAX_AGE
from danlu.sources.apt.resolver import _to_deb, check_names, resolve_install
from danlu.util.config import Configuration
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from tests.fakes.apt import AptArchive, ArchivePackage

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="needs apt and dpkg"
)

GIT = ArchivePackage(
    "git", "1:2.39", fields={"Depends": "libcurl (>= 7), perl", "Recommends": "less"}
)
PACKAGES = (
    GIT,
    ArchivePackage("libcurl", "7.88"),
    ArchivePackage("perl", "5.36"),
    ArchivePackage("less"),
    ArchivePackage("g++", "12"),
    ArchivePackage("mta-a", fields={"Provides": "mta"}),
    ArchivePackage("mta-b", fields={"Provides": "mta"}),
    ArchivePackage("only-mail", fields={"Provides": "mail-client"}),
    ArchivePackage("enemy", fields={"Conflicts": "git"}),
    ArchivePackage("broken", fields={"Depends": "libcurl (>= 99)"}),
)


class ArchiveScenario:
    """One archive, and a user whose apt source it is."""

    def __init__(self, root: Path) -> None:
        self.archive = AptArchive(root / "archive")
        self.archive.add("bookworm", *PACKAGES)
        self.paths = Paths.of({"DANLU_HOME": str(root / "home")})
        self.uri = ""

    @property
    def source(self) -> AptSource:
        return AptSource(self.archive.sources_line("bookworm", uri=self.uri))

    async def home(self) -> PrivateApt:
        return await private_apt_for(
            find_release("debian12"),
            "amd64",
            apt=self.source,
            paths=self.paths,
            config=Configuration(),
        )

    def plan(self, *names: str, keep: tuple[DebPackage, ...] = (), force: bool = True) -> list[str]:
        return [f"{deb.name}={deb.version}" for deb in self.debs(*names, keep=keep, force=force)]

    def debs(
        self, *names: str, keep: tuple[DebPackage, ...] = (), force: bool = True
    ) -> tuple[DebPackage, ...]:
        async def work() -> tuple[DebPackage, ...]:
            home = await self.home()
            await home.refresh(force=force)
            return (await resolve_install(home, names, keep=keep)).debs

        return anyio.run(work)

    def fetch(self, debs: tuple[DebPackage, ...], *, offline: bool = False) -> DebCache:
        return anyio.run(
            functools.partial(
                fetch_debs,
                debs,
                "debian12",
                "bookworm",
                apt=self.source,
                paths=self.paths,
                config=Configuration(),
                offline=offline,
            )
        )

    @contextlib.contextmanager
    def serve_archive(self) -> Iterator[list[str]]:
        """The archive over HTTP; gives the paths that were asked for."""
        requests: list[str] = []

        class RequestLogHandler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                requests.append(self.path)

        handler = functools.partial(RequestLogHandler, directory=str(self.archive.root))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.uri = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield requests
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveScenario:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return ArchiveScenario(tmp_path)


def test_a_plan_has_dependencies_without_recommended_packages(world: ArchiveScenario) -> None:
    assert world.plan("git") == ["git=1:2.39", "libcurl=7.88", "perl=5.36"]


def test_a_planned_package_states_hash_size_place_and_suite(world: ArchiveScenario) -> None:
    (deb,) = world.debs("perl")
    data = (world.archive.root / deb.path).read_bytes()
    assert (deb.sha256, deb.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (deb.archive, deb.path) == ("bookworm", "pool/main/p/perl/perl_5.36_all.deb")


def test_a_version_may_be_pinned_by_a_pattern(world: ArchiveScenario) -> None:
    world.archive.add("bookworm", ArchivePackage("perl", "5.40"))
    assert world.plan("perl=5.3*") == ["perl=5.36"]


def test_an_unknown_package_names_the_nearest(world: ArchiveScenario) -> None:
    with pytest.raises(ResolveError, match="'libcurll'") as caught:
        world.plan("git", "libcurll")
    assert "libcurl" in caught.value.hint


def test_an_unknown_version_is_rejected_with_the_available_one(world: ArchiveScenario) -> None:
    with pytest.raises(ResolveError, match="no version 9") as caught:
        world.plan("perl=9")
    assert "perl=5.36" in caught.value.hint


@pytest.mark.parametrize("name", ["git-", "git+", "perl+=5.36", "pe.l", "perl.*"])
def test_apts_shorthands_are_not_package_names(world: ArchiveScenario, name: str) -> None:
    with pytest.raises(ResolveError):
        world.plan(name)


def test_a_name_that_ends_in_plus_is_a_package_if_it_exists(world: ArchiveScenario) -> None:
    assert world.plan("g++") == ["g++=12"]


@pytest.mark.parametrize(
    "name",
    ["-oDir=/", "--allow", "", "git perl", "/tmp/x.deb", "./x.deb", "git\nperl", "git=", "Git",
     "?essential", "~i", "git/bookworm", "git=1 -o", "https://x.example/a.deb"],
)  # fmt: skip
def test_invalid_names_are_rejected_before_apt_runs(name: str) -> None:
    with pytest.raises(ResolveError):
        check_names([name])


def test_a_virtual_package_that_many_provide_is_refused_with_their_names(
    world: ArchiveScenario,
) -> None:
    with pytest.raises(ResolveError, match="mta") as caught:
        world.plan("mta")
    assert "mta-a, mta-b" in caught.value.hint


def test_a_virtual_package_that_one_provides_is_that_one(world: ArchiveScenario) -> None:
    assert world.plan("mail-client") == ["only-mail=1.0"]


def test_a_conflict_quotes_apts_message(world: ArchiveScenario) -> None:
    with pytest.raises(
        ResolveError, match="cannot install these system packages together"
    ) as caught:
        world.plan("git", "enemy")
    assert any("git" in line and "enemy" in line for line in caught.value.details)
    with pytest.raises(ResolveError) as caught:
        world.plan("broken")
    assert any("libcurl (>= 99)" in line for line in caught.value.details)


def test_kept_versions_are_used_if_the_archive_has_them(world: ArchiveScenario) -> None:
    before = world.debs("git")
    world.archive.add("bookworm", ArchivePackage("perl", "5.40"), ArchivePackage("libcurl", "8.0"))
    world.archive.remove("bookworm", ArchivePackage("libcurl", "7.88"))
    assert world.plan("git", "less", keep=before) == [
        "git=1:2.39",
        "less=1.0",
        "libcurl=8.0",
        "perl=5.36",
    ]
    assert "perl=5.40" in world.plan("git")


def test_kept_versions_yield_to_added_packages(world: ArchiveScenario) -> None:
    before = world.debs("git")
    world.archive.add(
        "bookworm",
        ArchivePackage("perl", "5.40"),
        ArchivePackage("tool", fields={"Depends": "perl (>= 5.40)"}),
    )
    assert "perl=5.40" in world.plan("git", "tool", keep=before)


def test_fresh_lists_are_not_fetched_again(world: ArchiveScenario) -> None:
    with world.serve_archive() as asked:
        world.plan("perl", force=False)
        assert asked
        asked.clear()
        world.plan("perl", force=False)
        assert asked == []
        stamp = anyio.run(world.home).stamp
        old = stamp.stat().st_mtime - LIST_MAX_AGE - 1
        os.utime(stamp, (old, old))
        world.plan("perl", force=False)
        assert asked


@pytest.mark.parametrize(("ahead", "again"), [(30, False), (3600, True)])
def test_lists_from_the_future_are_fetched_again(
    world: ArchiveScenario, ahead: int, again: bool
) -> None:
    with world.serve_archive() as asked:
        world.plan("perl", force=False)
        asked.clear()
        stamp = anyio.run(world.home).stamp
        future = time.time() + ahead
        os.utime(stamp, (future, future))
        world.plan("perl", force=False)
        assert bool(asked) == again


def test_old_package_lists_are_removed(world: ArchiveScenario) -> None:
    world.plan("perl")
    home = anyio.run(world.home).directory
    homes = {}
    for name, age in (
        ("recent", UNUSED_MAX_AGE - 3600),
        ("old", UNUSED_MAX_AGE + 3600),
        ("locked", UNUSED_MAX_AGE + 3600),
    ):
        homes[name] = home.with_name(name)
        homes[name].mkdir()
        (homes[name] / "updated").write_text("0")
        then = time.time() - age
        os.utime(homes[name] / "updated", (then, then))
    (home.with_name("unstamped")).mkdir()
    with file_lock(homes["locked"] / "lock"):
        world.plan("perl")
    remaining = {path.name for path in home.parent.iterdir()}
    assert remaining == {home.name, "recent", "locked", "unstamped"}


@pytest.fixture
def no_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings with which apt does not pause to try again."""
    settings = tmp_path / "apt.conf"
    settings.write_text('Acquire::Retries "0";\n')
    monkeypatch.setenv("APT_CONFIG", str(settings))


@pytest.mark.usefixtures("no_retries")
def test_a_mirror_that_does_not_answer_is_named(world: ArchiveScenario) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        world.uri = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}/debian"
        with pytest.raises(OutsideError) as caught:
            world.plan("perl")
    assert f"127.0.0.1:{world.uri.rpartition(':')[2].partition('/')[0]}" in caught.value.message
    assert "secret" not in "".join([caught.value.message, *caught.value.details])


def test_a_mirror_without_the_release_is_named(world: ArchiveScenario, tmp_path: Path) -> None:
    world.uri = (tmp_path / "empty").as_uri()
    with pytest.raises(OutsideError):
        world.plan("perl")


def test_mirror_may_lack_the_updates_of_a_release(world: ArchiveScenario) -> None:
    async def work(optional: bool) -> tuple[str, int]:
        home = await world.home()
        (entry,) = home.archive.entries
        updates = replace(entry, suite="bookworm-updates", optional=optional, options=())
        home = replace(home, archive=replace(home.archive, entries=(entry, updates)))
        await home.refresh(force=True)
        plan = await resolve_install(home, ["perl"], keep=())
        return plan.debs[0].name, home.release_date()

    name, date = anyio.run(work, True)
    assert name == "perl"
    assert date > 0
    with pytest.raises(OutsideError):
        anyio.run(work, False)


@pytest.mark.parametrize("path", ["", ".", "..", "/etc/x.deb", "../x.deb", "pool/../../x.deb"])
def test_record_with_a_path_outside_the_archive_is_refused(path: str) -> None:
    key = ("tool", "1", "amd64")
    record = PackageRecord("", {"filename": path, "sha256": "AB" * 32, "size": "3"})
    with pytest.raises(OutsideError, match="no valid record of tool 1"):
        _to_deb(key, {key: record}, "bookworm")
    with pytest.raises(OutsideError, match="no valid record of tool 1"):
        _to_deb(key, {}, "bookworm")
    record.fields["filename"] = "./pool/x.deb"
    deb = _to_deb(key, {key: record}, "bookworm")
    assert (deb.path, deb.sha256, deb.size) == ("pool/x.deb", "ab" * 32, 3)


def test_archive_without_a_date_is_refused(world: ArchiveScenario) -> None:
    async def work() -> int:
        home = await world.home()
        await home.refresh(force=True)
        (entry,) = home.archive.entries
        other = replace(home.archive, entries=(replace(entry, suite="sid"),))
        return replace(home, archive=other).release_date()

    with pytest.raises(OutsideError, match="have no date"):
        anyio.run(work)


def assert_locked_bytes(cache: DebCache, debs: tuple[DebPackage, ...]) -> None:
    results = [hashlib.sha256(cache.path(deb).read_bytes()).hexdigest() for deb in debs]
    assert results == [deb.sha256 for deb in debs]


def test_fetched_files_need_no_network_again(world: ArchiveScenario) -> None:
    debs = world.debs("git")
    cache = world.fetch(debs)
    assert_locked_bytes(cache, debs)
    shutil.rmtree(world.archive.root)
    world.fetch(debs, offline=True)


def test_an_absent_file_cannot_be_had_offline(world: ArchiveScenario) -> None:
    debs = world.debs("git")
    with pytest.raises(OutsideError, match=r"git 1:2\.39"):
        world.fetch(debs, offline=True)


def test_a_damaged_file_of_the_cache_is_fetched_again(world: ArchiveScenario) -> None:
    debs = world.debs("perl")
    cache = world.fetch(debs)
    size = cache.path(debs[0]).stat().st_size
    cache.path(debs[0]).write_bytes(b"x" * size)
    world.fetch(debs)
    assert_locked_bytes(cache, debs)


@pytest.mark.parametrize("longer", [0, 1, -1])
def test_damaged_file_of_the_cache_is_not_used_offline(world: ArchiveScenario, longer: int) -> None:
    debs = world.debs("perl")
    cache = world.fetch(debs)
    size = cache.path(debs[0]).stat().st_size
    cache.path(debs[0]).write_bytes(b"x" * (size + longer))
    with pytest.raises(OutsideError, match="not cached"):
        world.fetch(debs, offline=True)
    assert not cache.path(debs[0]).exists()


def test_a_partial_file_is_completed_and_a_wrong_one_replaced(world: ArchiveScenario) -> None:
    debs = world.debs("git")
    cache = DebCache(world.paths.cache / "apt" / "debs")
    with world.serve_archive():
        for deb, data in zip(debs, (b"", b"junk", b"x" * 10**6), strict=True):
            cache.partial_path(deb).parent.mkdir(parents=True, exist_ok=True)
            cache.partial_path(deb).write_bytes(data)
        world.fetch(debs)
    assert_locked_bytes(cache, debs)


def test_other_bytes_than_the_locked_ones_are_refused(world: ArchiveScenario) -> None:
    (deb,) = world.debs("perl")
    file = world.archive.root / deb.path
    with world.serve_archive():
        file.write_bytes(b"y" * deb.size)
        with pytest.raises(ChecksumError, match=r"perl 5\.36"):
            world.fetch((deb,))
    cache = DebCache(world.paths.cache / "apt" / "debs")
    assert not cache.path(deb).exists()


def test_a_removed_version_is_named_with_the_available_one(world: ArchiveScenario) -> None:
    with world.serve_archive():
        debs = world.debs("perl")
        world.archive.add("bookworm", ArchivePackage("perl", "5.40"))
        world.archive.remove("bookworm", ArchivePackage("perl", "5.36"))
        with pytest.raises(OutsideError, match=r"perl 5\.36 is no longer") as caught:
            world.fetch(debs)
    assert caught.value.details == ("perl: locked 5.36, available 5.40",)
    assert "danlu lock --upgrade perl" in caught.value.hint


@pytest.mark.usefixtures("no_retries")
def test_a_server_that_is_gone_is_named(world: ArchiveScenario) -> None:
    with world.serve_archive():
        debs = world.debs("perl")
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1"):
        world.fetch(debs)


def test_concurrent_fetches_download_each_file_once(world: ArchiveScenario) -> None:
    debs = world.debs("git")

    async def both() -> None:
        one = functools.partial(
            fetch_debs, debs, "debian12", "bookworm",
            apt=world.source, paths=world.paths, config=Configuration(),
        )  # fmt: skip
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    with world.serve_archive() as asked:
        world.uri += "/"
        anyio.run(both)
        fetched = [path for path in asked if path.endswith(".deb")]
    assert len(fetched) == len(set(fetched)) == len(debs)


DEB = DebPackage(
    "perl", "5.36", "all", "0" * 64, 10, "bookworm", "pool/main/p/perl/perl_5.36_all.deb"
)


@pytest.mark.parametrize(
    "deb",
    [
        replace(DEB, sha256="../../../etc/passwd"),
        replace(DEB, sha256="0" * 63),
        replace(DEB, path="/etc/passwd"),
        replace(DEB, path="pool/../../secret"),
        replace(DEB, path="pool/a\nb"),
        replace(DEB, name="-oDir=/"),
        replace(DEB, name="a b"),
        replace(DEB, version="1 2"),
        replace(DEB, version=""),
        replace(DEB, architecture="../x"),
        replace(DEB, size=-1),
    ],
)
def test_a_lock_with_impossible_package_data_is_refused(
    world: ArchiveScenario, deb: DebPackage
) -> None:
    with pytest.raises(LockError):
        world.fetch((deb,))


def test_a_lock_that_calls_a_file_by_another_name_is_refused(
    world: ArchiveScenario, tmp_path: Path
) -> None:
    debs = world.debs("perl")
    cache = world.fetch(debs)
    lie = replace(debs[0], name="openssl")
    with pytest.raises((LockError, BaseExceptionGroup)) as caught:
        anyio.run(write_repository, cache, [lie], tmp_path / "repository")
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LockError)


def test_a_repository_holds_exactly_the_locked_files(
    world: ArchiveScenario, tmp_path: Path
) -> None:
    debs = world.debs("git")
    cache = world.fetch(debs)
    directory = tmp_path / "repository"
    anyio.run(write_repository, cache, debs, directory)
    text = (directory / "Packages").read_text()
    assert text.count("\nSHA256: ") == len(debs)
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        ["Packages", *(f"{deb.sha256}.deb" for deb in debs)]
    )


def test_nearest_names_are_few_and_close() -> None:
    names = ["libcurl4", "libcurl3", "curl", "git", "gitk", "zzz"]
    assert suggest_names("libcurl5", names)[0] in ("libcurl4", "libcurl3")
    assert suggest_names("gti", names)[0] == "git"
    assert suggest_names("qqqq", names) == ()


def test_unknown_packages_are_read_from_apts_messages() -> None:
    output = (
        "E: Unable to locate package tool\n"
        "E: Version '2.0*' for 'other' was not found\n"
        "E: Unable to locate package tool\n"
        "E: Package 'virtual' has no installation candidate\n"
    )
    assert parse_unknown_packages(output) == [("tool", ""), ("other", "2.0*"), ("virtual", "")]


def test_providers_are_the_indented_lines_below_a_virtual_package() -> None:
    output = (
        "Package mta is a virtual package provided by:\n"
        "  exim4 4.96 (= 4.96)\n"
        "  postfix 3.7\n"
        "You should explicitly select one to install.\n"
        "\n"
        "E: Package 'mta' has no installation candidate\n"
    )
    assert parse_providers(output) == {"mta": ["exim4", "postfix"]}
