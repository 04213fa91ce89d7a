"""Sources of apt packages: source files, this machine's mirrors, the user's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import MachineError, UsageError
from danlu.graph.ops import Platform
from danlu.sources.apt.archive import (
    _with_usable_key,
    debian_architecture,
    find_archive,
    find_release,
    find_release_by_codename,
)
from danlu.sources.apt.host_config import HostApt, parse_host_config
from danlu.sources.apt.sources_list import (
    SourceEntry,
    format_deb822,
    parse_deb822,
    parse_one_line,
    parse_sources,
)
from danlu.util.config import Configuration, MirrorConfig

DEB822 = """\
# the machine's mirror
Types: deb deb-src
URIs: http://mirror.example/debian https://other.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/keys/a.gpg] http://mirror.example/debian bookworm main  # note
deb http://security.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb http://flat.example/cuda /
debris
"""
NO_MIRRORS = Configuration()


DEBIAN_HOST = HostApt(entries=tuple(parse_deb822(DEB822)))


def uris(entries: tuple[SourceEntry, ...]) -> dict[str, tuple[str, ...]]:
    return {entry.suite: entry.uris for entry in entries}


def test_deb822_entries_are_the_enabled_binary_suites() -> None:
    result = parse_deb822(DEB822)
    assert [entry.suite for entry in result] == ["bookworm", "bookworm-updates"]
    assert result[0].uris == ("http://mirror.example/debian", "https://other.example/debian")
    assert result[0].components == ("main", "contrib")


def test_one_line_entries_keep_options_and_drop_comments_and_sources() -> None:
    one_line = parse_one_line(ONE_LINE)
    assert [entry.suite for entry in one_line] == ["bookworm", "bookworm-security", "/"]
    assert one_line[0].architectures == ("amd64", "arm64")
    assert one_line[0].signed_by == "/keys/a.gpg"
    assert one_line[0].components == ("main",)


def test_entries_survive_being_written_and_read_again() -> None:
    key = "\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n.\nmQIN\n-----END PGP PUBLIC KEY BLOCK-----"
    entry = SourceEntry(("http://m.example/debian",), "bookworm", signed_by=key)
    trusted = SourceEntry(("http://m.example/x",), "./", (), options=(("trusted", "yes"),))
    assert parse_sources(format_deb822([entry, trusted])) == [entry, trusted]


def test_a_suite_of_the_same_family_is_derived_from_the_machines_own() -> None:
    archive = find_archive(find_release("debian13"), "amd64", host=DEBIAN_HOST, config=NO_MIRRORS)
    assert list(uris(archive.entries)) == ["trixie", "trixie-updates"]
    assert archive.mirror_count == 2


@pytest.mark.parametrize(
    ("signed_by", "family", "kept"),
    [
        ("{key}", "debian", True),
        ("{key} {key}", "debian", True),
        ("{key} /absent/key.gpg", "debian", False),
        ("/absent/key.gpg", "ubuntu", False),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----", "ubuntu", True),
        ("", "debian", True),
        ("", "ubuntu", False),
    ],
)
def test_keyring_of_this_machine_takes_the_place_of_one_that_it_lacks(
    tmp_path: Path, signed_by: str, family: str, kept: bool
) -> None:
    own, other = tmp_path / "own.gpg", tmp_path / "configured.gpg"
    for path in (own, other):
        path.touch()
    entry = SourceEntry(("http://h/x",), "s", ("main",), signed_by=signed_by.format(key=own))
    mirror = MirrorConfig(urls=("http://h/x",), keyring=str(other))
    expected = entry.signed_by if kept else str(other)
    assert _with_usable_key(entry, family, mirror).signed_by == expected


def test_security_archive_of_the_machine_is_that_of_another_release_too() -> None:
    lines = (
        "deb http://h/debian bookworm main\ndeb http://s/debian-security bookworm-security main\n"
    )
    machine = HostApt(entries=tuple(parse_one_line(lines)))
    for release, suite in (("debian12", "bookworm-security"), ("debian13", "trixie-security")):
        archive = find_archive(find_release(release), "amd64", host=machine, config=NO_MIRRORS)
        assert uris(archive.entries)[suite] == ("http://s/debian-security",)


@pytest.mark.parametrize("order", [1, -1])
def test_entries_for_the_release_itself_beat_those_of_another(order: int) -> None:
    lines = [
        "deb http://one.example/debian bookworm main",
        "deb http://two.example/debian bookworm main",
        "deb http://old.example/debian bullseye main",
        "deb http://older.example/debian bullseye main",
    ]
    machine = HostApt(entries=tuple(parse_one_line("\n".join(lines[::order]))))
    exact = find_archive(find_release("debian12"), "amd64", host=machine, config=NO_MIRRORS)
    assert sorted(uris(exact.entries)["bookworm"]) == [
        "http://one.example/debian",
        "http://two.example/debian",
    ]
    derived = find_archive(find_release("debian13"), "amd64", host=machine, config=NO_MIRRORS)
    assert len(uris(derived.entries)["trixie"]) == 4


def test_other_archives_that_use_the_codename_are_not_taken_for_the_distribution() -> None:
    other = parse_one_line("deb https://tool.example/apt bookworm main\n")
    stated = parse_one_line("deb https://vendor.example/debian bookworm main\n")
    machine = HostApt(
        entries=(*other, *stated, *DEBIAN_HOST.entries),
        origins={("https://vendor.example/debian", "bookworm"): ("Vendor", "bookworm")},
    )
    archive = find_archive(find_release("debian12"), "amd64", host=machine, config=NO_MIRRORS)
    assert uris(archive.entries)["bookworm"] == DEBIAN_HOST.entries[0].uris


def test_a_mirror_is_recognized_by_its_release_file_not_its_address() -> None:
    entry = parse_one_line("deb https://proxy.example/repository/apt stable main\n")[0]
    machine = HostApt(entries=(entry,), origins={(entry.uris[0], "stable"): ("Debian", "bookworm")})
    archive = find_archive(find_release("debian12"), "amd64", host=machine, config=NO_MIRRORS)
    assert uris(archive.entries) == {"bookworm": entry.uris}


def test_entries_for_other_architectures_are_left_out() -> None:
    entries = parse_one_line("deb [arch=arm64] http://ports.example/ubuntu-ports noble main\n")
    with pytest.raises(MachineError):
        find_archive(
            find_release("ubuntu24.04"), "amd64", host=HostApt(entries=tuple(entries)),
            config=NO_MIRRORS,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "architecture", "first"),
    [
        ("http://archive.ubuntu.com/ubuntu/", "arm64", "http://ports.ubuntu.com/ubuntu-ports"),
        ("http://de.archive.ubuntu.com/ubuntu", "arm64", "http://ports.ubuntu.com/ubuntu-ports"),
        ("http://security.ubuntu.com/ubuntu", "arm64", "http://ports.ubuntu.com/ubuntu-ports"),
        ("https://mirror.example/ubuntu", "arm64", "https://mirror.example/ubuntu-ports"),
        ("https://mirror.example/all/ubuntu-ports", "arm64", ""),
        ("http://ports.ubuntu.com/ubuntu-ports", "amd64", "http://archive.ubuntu.com/ubuntu"),
        ("https://mirror.example/ubuntu", "amd64", ""),
        ("https://mirror.example/apt", "arm64", ""),
    ],
)
def test_ubuntu_s_other_architectures_come_from_its_ports(
    uri: str, architecture: str, first: str
) -> None:
    config = Configuration(mirrors={"ubuntu": MirrorConfig(urls=(uri,))})
    release = find_release("ubuntu24.04")
    archive = find_archive(release, architecture, host=HostApt(), config=config)
    # What the user wrote is the second choice: a mirror may have everything in one place.
    assert uris(archive.entries)["noble"] == ((first, uri) if first else (uri,))


def test_debian_has_all_architectures_in_one_place() -> None:
    archive = find_archive(find_release("debian12"), "arm64", host=DEBIAN_HOST, config=NO_MIRRORS)
    assert uris(archive.entries)["bookworm"] == DEBIAN_HOST.entries[0].uris


def test_another_family_without_a_mirror_is_refused_with_the_lines_to_write() -> None:
    with pytest.raises(MachineError) as caught:
        find_archive(find_release("ubuntu22.04"), "amd64", host=DEBIAN_HOST, config=NO_MIRRORS)
    assert caught.value.exit_code == 4
    assert caught.value.details[0] == "[mirrors.ubuntu]"
    assert any(line.startswith("# keyring = ") for line in caught.value.details)


def test_a_configured_mirror_wins_over_the_machines_sources(tmp_path: Path) -> None:
    keyring = tmp_path / "keys.gpg"
    keyring.touch()
    mirror = MirrorConfig(
        urls=("http://a.example/ubuntu", "http://b.example/ubuntu"),
        security=("http://s.example/ubuntu",),
        keyring=str(keyring),
        components=("main", "universe"),
    )
    config = Configuration(mirrors={"ubuntu": mirror})
    archive = find_archive(find_release("ubuntu22.04"), "amd64", host=DEBIAN_HOST, config=config)
    results = {entry.suite: entry for entry in archive.entries}
    assert results["jammy"].uris == mirror.urls
    assert results["jammy-security"].uris == mirror.security
    assert results["jammy"].signed_by == str(keyring)
    assert [suite for suite, entry in results.items() if entry.optional] == [
        "jammy-updates",
        "jammy-security",
    ]


def test_missing_keyring_is_named() -> None:
    mirror = MirrorConfig(urls=("http://a.example/ubuntu",), keyring="/nowhere/keys.gpg")
    config = Configuration(mirrors={"ubuntu": mirror})
    with pytest.raises(MachineError, match=r"/nowhere/keys\.gpg"):
        find_archive(find_release("ubuntu22.04"), "amd64", host=DEBIAN_HOST, config=config)


def test_the_users_source_is_used_alone_if_it_has_the_release() -> None:
    text = "deb http://mine.example/debian bookworm main\n"
    archive = find_archive(
        find_release("debian12"), "amd64", host=DEBIAN_HOST, config=NO_MIRRORS, source=text
    )
    assert uris(archive.entries) == {"bookworm": ("http://mine.example/debian",)}


def test_servers_of_the_users_source_are_replaced_by_mirrors() -> None:
    text = "deb http://mine.example/debian bookworm main\ndeb http://mine.example/cuda /\n"
    config = Configuration(mirrors={"mine.example/debian": MirrorConfig(("http://m.example/d",))})
    archive = find_archive(
        find_release("debian12"), "amd64", host=DEBIAN_HOST, config=config, source=text
    )
    assert uris(archive.entries) == {
        "bookworm": ("http://m.example/d",),
        "/": ("http://mine.example/cuda",),
    }


def test_the_users_source_is_added_if_it_lacks_the_release() -> None:
    text = "deb http://extra.example/cuda /\n"
    archive = find_archive(
        find_release("debian12"), "amd64", host=DEBIAN_HOST, config=NO_MIRRORS, source=text
    )
    assert list(uris(archive.entries)) == ["bookworm", "bookworm-updates", "/"]


def test_apt_files_are_read_from_the_configured_directories(
    tmp_path: Path,
) -> None:
    parts = tmp_path / "etc" / "parts"
    parts.mkdir(parents=True)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "x.list").write_text("deb http://x.example/debian bookworm-security main\n")
    (parts / "ignored.save").write_text("deb http://ignored.example/debian bookworm main\n")
    (tmp_path / "etc" / "main.list").write_text("deb http://main.example/debian sid main\n")
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "mirror.example_debian_dists_bookworm_InRelease").write_text(
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nCodename: bookworm\n"
    )
    dump = (
        f'Dir "{tmp_path}";\nDir::Etc "etc";\nDir::Etc::sourceparts "parts";\n'
        f'Dir::State::lists "{lists}";\nDir::Etc::sourcelist "main.list";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\nAcquire::Languages:: "de";\n'
        'APT::Default-Release "sid";\n'
    )
    host_config = parse_host_config(dump)
    assert [entry.suite for entry in host_config.entries] == [
        "sid",
        "bookworm",
        "bookworm-updates",
        "bookworm-security",
    ]
    assert host_config.settings == ('Acquire::http::Proxy "http://proxy.example:3128";',)
    assert host_config.origins["http://mirror.example/debian", "bookworm"] == ("Debian", "bookworm")
    assert host_config.trusted_parts == str(tmp_path / "etc" / "trusted.gpg.d")
    (tmp_path / "etc" / "main.list").unlink()
    assert len(parse_host_config(dump).entries) == 3


@pytest.mark.parametrize("name", ["debian99", "debian", "fedora40", "", "Debian12"])
def test_an_unknown_distribution_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_release(name)
    assert "debian12" in caught.value.hint


def test_releases_are_found_by_codename_alone_too() -> None:
    assert find_release_by_codename("", "jammy") == find_release("ubuntu22.04")
    assert find_release_by_codename("debian", "sid").suites[0] == "sid"
    with pytest.raises(UsageError):
        find_release_by_codename("alpine", "v3")


def test_architectures_have_debian_names() -> None:
    assert debian_architecture(Platform()) == "amd64"
    assert debian_architecture(Platform(architecture="arm", variant="v7")) == "armhf"
    with pytest.raises(UsageError):
        debian_architecture(Platform(os="windows"))
