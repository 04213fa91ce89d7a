"""Julia packages, locked from a package server in a directory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.environment.types import Declaration
from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError, Span
from danlu.lang.functions.julia import (
    JULIA_PACKAGES,
    JuliaPackages,
    JuliaToolchain,
)
from danlu.lang.julia_depot import LockedJuliaPackage
from danlu.util.retry import RetryPolicy
from tests.fakes.julia import JuliaServer, make_uuid
from tests.resolve.section_locker import SectionLocker

SPAN = Span("build.envd", 4)
JULIA = JuliaToolchain("1.10.10")


@pytest.fixture
def server(tmp_path: Path) -> JuliaServer:
    """``Grimoire`` needs ``Runes`` below 2, and a package that is part of Julia."""
    server = JuliaServer(tmp_path / "server")
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        server.publish("Runes", version)
    server.publish("Grimoire", needs={"Runes": "1", "Dates": "1"})
    return server


@pytest.fixture
def locker(tmp_path: Path, server: JuliaServer) -> SectionLocker:
    return SectionLocker(tmp_path, {"julia-packages": str(server.root)})


def lock(
    locker: SectionLocker, *names: str, pins: tuple[Any, ...] = (), julia: Declaration = JULIA
) -> dict[str, LockedJuliaPackage]:
    declared = JuliaPackages(names, span=SPAN)
    result = locker.lock(JULIA_PACKAGES, julia, declared, pins=pins)
    return {pin.name: pin for pin in result}


def find_error(
    locker: SectionLocker, *names: str, kind: type[DanluError], julia: Declaration = JULIA
) -> DanluError:
    with pytest.raises(kind) as caught:
        lock(locker, *names, julia=julia)
    assert caught.value.span == SPAN
    return caught.value


def test_packages_are_locked_with_what_they_need(locker: SectionLocker) -> None:
    pins = lock(locker, "Grimoire", "Random")
    assert {pin.name: (pin.version, pin.requested) for pin in pins.values()} == {
        "Grimoire": ("1.0.0", "Grimoire"),
        "Runes": ("1.1.0", ""),
        "Random": ("1.10.10", "Random"),
    }
    assert set(pins["Grimoire"].dependencies) == {
        f"Dates={make_uuid('Dates')}",
        f"Runes={make_uuid('Runes')}",
    }
    assert pins["Runes"].path == f"package/{make_uuid('Runes')}/{pins['Runes'].tree}"
    assert "server" not in repr(pins)


def test_locked_versions_are_kept_until_an_upgrade(
    locker: SectionLocker, server: JuliaServer
) -> None:
    pins = tuple(lock(locker, "Grimoire").values())
    server.publish("Runes", "1.2.0")
    assert tuple(lock(locker, "Grimoire", pins=pins).values()) == pins
    assert lock(locker, "Grimoire", "Runes", pins=pins)["Runes"].version == "1.1.0"
    assert JULIA_PACKAGES.is_stale(locker.environment(JULIA, JuliaPackages(("Runes",))), pins)
    locker.context.may_change = lambda name: name == "Runes"
    assert lock(locker, "Grimoire", pins=pins)["Runes"].version == "1.2.0"


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (("Grimore",), "Julia package Grimore not found", "did you mean Grimoire?"),
        (
            ("Runes@7",),
            "Julia package Runes 7 not found",
            "newest versions are 2.0.0, 1.1.0, 1.0.0",
        ),
        (("Grimoire", "Runes@2"), "no versions of the Julia packages fit together: Runes", "Name@"),
        (("Newer",), "fit together: Newer", "another version of Julia"),
        (("Builder",), "Builder 1.0.0 runs a build script (deps/build.jl)", 'Pkg.add(\\"Builder'),
    ],
)
def test_package_that_cannot_be_installed_is_refused_with_the_reason(
    locker: SectionLocker, server: JuliaServer, names: tuple[str, ...], message: str, hint: str
) -> None:
    server.publish("Newer", needs={"julia": "1.11-1"})
    server.publish("Builder", files={"deps/build.jl": "error()\n"})
    error = find_error(locker, *names, kind=ResolveError)
    assert error.exit_code == 2
    assert message in error.message
    assert hint in error.hint


def test_packages_without_a_known_julia_are_refused(locker: SectionLocker) -> None:
    declared = JuliaPackages(("Runes",), span=SPAN)
    with pytest.raises(ResolveError, match="needs a Julia whose version is known") as caught:
        locker.lock(JULIA_PACKAGES, declared)
    assert "install.julia()" in caught.value.hint
    error = find_error(locker, "Runes", kind=ResolveError, julia=JuliaToolchain("1.10"))
    assert "exact version" in error.message


def test_server_that_is_down_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(4, 0.001))
    locker = SectionLocker(tmp_path, {"julia-packages": "http://ada:hunter2@127.0.0.1:1"})
    error = find_error(locker, "Runes", kind=OutsideError)
    assert error.exit_code == 3
    assert "cannot fetch registries from http://127.0.0.1:1" in error.message
    assert "JULIA_PKG_SERVER" in error.hint
    assert "hunter2" not in f"{error.message} {error.hint} {error.details}"


def test_files_with_another_hash_are_refused_and_not_kept(
    locker: SectionLocker, server: JuliaServer
) -> None:
    package = next(path for path in (server.root / "package").rglob("*") if path.is_file())
    for directory, bad, kind in (
        ("registry", package.read_bytes(), ChecksumError),
        ("package", b"", OutsideError),
    ):
        for file in [path for path in (server.root / directory).rglob("*") if path.is_file()]:
            file.write_bytes(bad)
        assert find_error(locker, "Grimoire", kind=kind).exit_code == 3
        assert hashlib.sha256(bad).hexdigest() not in locker.list_cached_files()
        server.write_registry()


@pytest.mark.parametrize("text", [b"", b"<html>", b"/registry/../../etc/passwd\n"])
def test_invalid_list_of_registries_is_refused(
    locker: SectionLocker, server: JuliaServer, text: bytes
) -> None:
    (server.root / "registries").write_bytes(text)
    error = find_error(locker, "Runes", kind=OutsideError)
    assert "list of registries is invalid" in error.message


def test_server_without_the_listed_file_is_named(
    locker: SectionLocker, server: JuliaServer
) -> None:
    for path in (server.root / "package" / make_uuid("Runes")).iterdir():
        path.unlink()
    error = find_error(locker, "Runes", kind=OutsideError)
    assert "lists Runes 2.0.0, but does not have the file" in error.message


def test_artifact_of_the_platform_is_locked(locker: SectionLocker, server: JuliaServer) -> None:
    tree = server.store("artifact", {"bin/brew": "potion"})
    files = {"Artifacts.toml": f'[elixir]\ngit-tree-sha1 = "{tree}"\n'}
    server.publish("Alembic", files=files)
    pins = lock(locker, "Alembic")
    assert pins["Alembic"].artifacts == (tree,)
    assert (pins["elixir"].kind, pins["elixir"].path) == ("artifact", f"artifact/{tree}")
    assert pins["elixir"].directory == f"/usr/local/share/julia/artifacts/{tree}"


def test_platform_that_julia_is_not_built_for_is_refused(
    tmp_path: Path, server: JuliaServer
) -> None:
    tree = server.store("artifact", {"bin/brew": "potion"})
    server.publish("Alembic", files={"Artifacts.toml": f'[x]\ngit-tree-sha1 = "{tree}"\n'})
    locker = SectionLocker(tmp_path, {"julia-packages": str(server.root)}, "riscv64")
    assert "linux/riscv64" in find_error(locker, "Alembic", kind=ResolveError).message


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../x"},
        {"version": "1/2"},
        {"julia": '1.10"\nevil = "'},
        {"uuid": "../.."},
        {"tree": "0"},
        {"sha256": "0"},
        {"dependencies": ('A="x"\n[evil]=' + make_uuid("A"),)},
        {"extensions": ("A=B]",)},
    ],
)
def test_pin_that_was_edited_is_refused(locker: SectionLocker, changes: dict[str, Any]) -> None:
    pin = lock(locker, "Grimoire")["Grimoire"]
    assert JULIA_PACKAGES.find_problem(pin) == ""
    assert JULIA_PACKAGES.find_problem(replace(pin, **changes))
