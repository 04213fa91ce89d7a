"""Planning and fetching packages, against small archives that this machine's apt really reads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from danlu.environment.types import AptSource
from danlu.errors import ChecksumError, LockError, OutsideError, ResolveError
from danlu.graph import Deb
from danlu.sources.apt import Cache, Home, distribution, fetch, home_for, write_repository
from danlu.sources.apt.home import FRESH
from danlu.sources.apt.messages import nearest
from danlu.sources.apt.plan import check_names, plan
from danlu.testing.apt import AptArchive, Package
from danlu.util.config import Configuration
from danlu.util.paths import Paths

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="needs apt and dpkg"
)

GIT = Package("git", "1:2.39", fields={"Depends": "libcurl (>= 7), perl", "Recommends": "less"})
PACKAGES = (
    GIT,
    Package("libcurl", "7.88"),
    Package("perl", "5.36"),
    Package("less"),
    Package("g++", "12"),
    Package("mta-a", fields={"Provides": "mta"}),
    Package("mta-b", fields={"Provides": "mta"}),
    Package("only-mail", fields={"Provides": "mail-client"}),
    Package("enemy", fields={"Conflicts": "git"}),
    Package("broken", fields={"Depends": "libcurl (>= 99)"}),
)


class World:
    """One archive, and a user whose apt source it is."""

    def __init__(self, root: Path) -> None:
        self.archive = AptArchive(root / "archive")
        self.archive.add("bookworm", *PACKAGES)
        self.paths = Paths.of({"DANLU_HOME": str(root / "home")})
        self.uri = ""

    @property
    def source(self) -> AptSource:
        return AptSource(self.archive.source("bookworm", uri=self.uri))

    async def home(self) -> Home:
        return await home_for(
            distribution("debian12"),
            "amd64",
            apt=self.source,
            paths=self.paths,
            config=Configuration(),
        )

    def plan(self, *names: str, keep: tuple[Deb, ...] = (), force: bool = True) -> list[str]:
        return [f"{deb.name}={deb.version}" for deb in self.debs(*names, keep=keep, force=force)]

    def debs(self, *names: str, keep: tuple[Deb, ...] = (), force: bool = True) -> tuple[Deb, ...]:
        async def work() -> tuple[Deb, ...]:
            home = await self.home()
            await home.refresh(force=force)
            return (await plan(home, names, keep=keep)).debs

        return anyio.run(work)

    def fetch(self, debs: tuple[Deb, ...], *, offline: bool = False) -> Cache:
        return anyio.run(
            functools.partial(
                fetch,
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
    def served(self) -> Iterator[list[str]]:
        """The archive over HTTP; gives the paths that were asked for."""
        asked: list[str] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                asked.append(self.path)

        handler = functools.partial(Handler, directory=str(self.archive.root))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.uri = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return World(tmp_path)


def test_a_plan_has_what_is_needed_and_nothing_recommended(world: World) -> None:
    assert world.plan("git") == ["git=1:2.39", "libcurl=7.88", "perl=5.36"]


def test_a_planned_package_states_hash_size_place_and_suite(world: World) -> None:
    (deb,) = world.debs("perl")
    data = (world.archive.root / deb.path).read_bytes()
    assert (deb.sha256, deb.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (deb.archive, deb.path) == ("bookworm", "pool/main/p/perl/perl_5.36_all.deb")


def test_a_version_may_be_pinned_by_a_pattern(world: World) -> None:
    world.archive.add("bookworm", Package("perl", "5.40"))
    assert world.plan("perl=5.3*") == ["perl=5.36"]


def test_an_unknown_package_names_the_nearest(world: World) -> None:
    with pytest.raises(ResolveError, match="'libcurll'") as caught:
        world.plan("git", "libcurll")
    assert "libcurl" in caught.value.hint


def test_an_unknown_version_names_the_one_there_is(world: World) -> None:
    with pytest.raises(ResolveError, match="no version 9") as caught:
        world.plan("perl=9")
    assert "perl=5.36" in caught.value.hint


@pytest.mark.parametrize("name", ["git-", "git+", "perl+=5.36", "pe.l", "perl.*"])
def test_apts_own_shorthands_are_no_package_names(world: World, name: str) -> None:
    with pytest.raises(ResolveError):
        world.plan(name)


def test_a_name_that_ends_in_plus_is_a_name_where_it_exists(world: World) -> None:
    assert world.plan("g++") == ["g++=12"]


@pytest.mark.parametrize(
    "name",
    ["-oDir=/", "--allow", "", "git perl", "/tmp/x.deb", "./x.deb", "git\nperl", "git=", "Git",
     "?essential", "~i", "git/bookworm", "git=1 -o", "https://x.example/a.deb"],
)  # fmt: skip
def test_what_is_no_name_is_refused_before_apt_sees_it(name: str) -> None:
    with pytest.raises(ResolveError):
        check_names([name])


def test_a_virtual_package_that_many_provide_is_refused_with_their_names(world: World) -> None:
    with pytest.raises(ResolveError, match="mta") as caught:
        world.plan("mta")
    assert "mta-a, mta-b" in caught.value.hint


def test_a_virtual_package_that_one_provides_is_that_one(world: World) -> None:
    assert world.plan("mail-client") == ["only-mail=1.0"]


def test_a_conflict_says_why_in_apts_words(world: World) -> None:
    with pytest.raises(ResolveError, match="cannot be installed together") as caught:
        world.plan("git", "enemy")
    assert any("git" in line and "enemy" in line for line in caught.value.details)
    with pytest.raises(ResolveError) as caught:
        world.plan("broken")
    assert any("libcurl (>= 99)" in line for line in caught.value.details)


def test_kept_versions_stay_where_the_archive_has_them(world: World) -> None:
    before = world.debs("git")
    world.archive.add("bookworm", Package("perl", "5.40"), Package("libcurl", "8.0"))
    world.archive.remove("bookworm", Package("libcurl", "7.88"))
    assert world.plan("git", "less", keep=before) == [
        "git=1:2.39",
        "less=1.0",
        "libcurl=8.0",
        "perl=5.36",
    ]
    assert "perl=5.40" in world.plan("git")


def test_kept_versions_give_way_to_what_was_added(world: World) -> None:
    before = world.debs("git")
    world.archive.add(
        "bookworm", Package("perl", "5.40"), Package("tool", fields={"Depends": "perl (>= 5.40)"})
    )
    assert "perl=5.40" in world.plan("git", "tool", keep=before)


def test_fresh_lists_are_not_fetched_again(world: World) -> None:
    with world.served() as asked:
        world.plan("perl", force=False)
        assert asked
        asked.clear()
        world.plan("perl", force=False)
        assert asked == []
        stamp = anyio.run(world.home).stamp
        old = stamp.stat().st_mtime - FRESH - 1
        os.utime(stamp, (old, old))
        world.plan("perl", force=False)
        assert asked


def test_a_mirror_that_does_not_answer_is_named(world: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        world.uri = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}/debian"
        with pytest.raises(OutsideError) as caught:
            world.plan("perl")
    assert f"127.0.0.1:{world.uri.rpartition(':')[2].partition('/')[0]}" in caught.value.message
    assert "secret" not in "".join([caught.value.message, *caught.value.details])


def test_a_mirror_without_the_release_is_named(world: World, tmp_path: Path) -> None:
    world.uri = (tmp_path / "empty").as_uri()
    with pytest.raises(OutsideError):
        world.plan("perl")


def test_fetched_files_need_no_network_again(world: World) -> None:
    debs = world.debs("git")
    cache = world.fetch(debs)
    assert [hashlib.sha256(cache.path(deb).read_bytes()).hexdigest() for deb in debs] == [
        deb.sha256 for deb in debs
    ]
    shutil.rmtree(world.archive.root)
    world.fetch(debs, offline=True)


def test_an_absent_file_cannot_be_had_offline(world: World) -> None:
    debs = world.debs("git")
    with pytest.raises(OutsideError, match=r"git 1:2\.39"):
        world.fetch(debs, offline=True)


def test_a_damaged_file_of_the_cache_is_fetched_again(world: World) -> None:
    debs = world.debs("perl")
    cache = world.fetch(debs)
    size = cache.path(debs[0]).stat().st_size
    cache.path(debs[0]).write_bytes(b"x" * size)
    world.fetch(debs)
    assert cache.has(debs[0])


def test_a_partial_file_is_completed_and_a_wrong_one_replaced(world: World) -> None:
    debs = world.debs("git")
    cache = Cache(world.paths.cache / "apt" / "debs")
    with world.served():
        for deb, data in zip(debs, (b"", b"junk", b"x" * 10**6), strict=True):
            cache.partial(deb).parent.mkdir(parents=True, exist_ok=True)
            cache.partial(deb).write_bytes(data)
        world.fetch(debs)
    assert all(cache.has(deb) for deb in debs)


def test_other_bytes_than_the_locked_ones_are_refused(world: World) -> None:
    (deb,) = world.debs("perl")
    file = world.archive.root / deb.path
    with world.served():
        file.write_bytes(b"y" * deb.size)
        with pytest.raises(ChecksumError, match=r"perl 5\.36"):
            world.fetch((deb,))
    cache = Cache(world.paths.cache / "apt" / "debs")
    assert not cache.path(deb).exists()


def test_a_version_that_is_gone_is_named_with_the_one_there_is(world: World) -> None:
    with world.served():
        debs = world.debs("perl")
        world.archive.add("bookworm", Package("perl", "5.40"))
        world.archive.remove("bookworm", Package("perl", "5.36"))
        with pytest.raises(OutsideError, match=r"perl 5\.36 is no longer") as caught:
            world.fetch(debs)
    assert caught.value.details == ("perl: locked 5.36, now 5.40",)
    assert "danlu lock --upgrade perl" in caught.value.hint


def test_a_server_that_is_gone_is_named(world: World) -> None:
    with world.served():
        debs = world.debs("perl")
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1"):
        world.fetch(debs)


def test_two_at_once_fetch_each_file_once(world: World) -> None:
    debs = world.debs("git")

    async def both() -> None:
        one = functools.partial(
            fetch, debs, "debian12", "bookworm",
            apt=world.source, paths=world.paths, config=Configuration(),
        )  # fmt: skip
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    with world.served() as asked:
        world.uri += "/"
        anyio.run(both)
        fetched = [path for path in asked if path.endswith(".deb")]
    assert len(fetched) == len(set(fetched)) == len(debs)


DEB = Deb("perl", "5.36", "all", "0" * 64, 10, "bookworm", "pool/main/p/perl/perl_5.36_all.deb")


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
def test_a_lock_that_no_archive_can_have_made_is_refused(world: World, deb: Deb) -> None:
    with pytest.raises(LockError):
        world.fetch((deb,))


def test_a_lock_that_calls_a_file_by_another_name_is_refused(world: World, tmp_path: Path) -> None:
    debs = world.debs("perl")
    cache = world.fetch(debs)
    lie = replace(debs[0], name="openssl")
    with pytest.raises((LockError, BaseExceptionGroup)) as caught:
        anyio.run(write_repository, cache, [lie], tmp_path / "repository")
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LockError)


def test_a_repository_holds_exactly_the_locked_files(world: World, tmp_path: Path) -> None:
    debs = world.debs("git")
    cache = world.fetch(debs)
    directory = tmp_path / "repository"
    anyio.run(write_repository, cache, debs, directory)
    text = (directory / "Packages").read_text()
    assert text.count("\nSHA256: ") == len(debs)
    assert sorted(one.name for one in directory.iterdir()) == sorted(
        ["Packages", *(f"{deb.sha256}.deb" for deb in debs)]
    )


def test_nearest_names_are_few_and_close() -> None:
    names = ["libcurl4", "libcurl3", "curl", "git", "gitk", "zzz"]
    assert nearest("libcurl5", names)[0] in ("libcurl4", "libcurl3")
    assert nearest("gti", names)[0] == "git"
    assert nearest("qqqq", names) == ()
