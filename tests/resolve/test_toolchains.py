"""Toolchains that cannot be locked: one error each, and nothing kept that a build would use."""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.environment.lock_section import LockSection
from danlu.environment.types import Declaration
from danlu.errors import ChecksumError, DanluError, MachineError, OutsideError, ResolveError, Span
from danlu.lang.functions import LOCK_SECTIONS
from danlu.lang.functions.codex import CODEX, CodexAgent
from danlu.lang.functions.go import GoToolchain
from danlu.lang.functions.julia import JuliaToolchain
from danlu.lang.functions.nodejs import NodeToolchain
from danlu.lang.functions.r import R_PACKAGES, RPackages
from danlu.lang.functions.rstudio import RStudioServer
from danlu.lang.functions.rust import RustToolchain
from danlu.sources.mirrors import fetch_archive
from danlu.util.retry import RetryPolicy
from tests.resolve.section_locker import SectionLocker

SPAN = Span("build.envd", 3)
CONTENT = b"an archive"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WRONG = "0" * 64


def describe_codex(version: str, integrity: bytes) -> bytes:
    digest = b64encode(hashlib.sha512(integrity).digest()).decode()
    return json.dumps({"version": version, "dist": {"integrity": f"sha512-{digest}"}}).encode()


@dataclass
class ToolchainCase:
    """A call, its section of the lock, and a mirror's files.

    ``published`` are the files that have a hash: correct, and that of another archive.
    """

    call: Declaration
    section: LockSection[Any]
    mirror: str
    archive: str
    published: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    index: Mapping[str, bytes] = field(default_factory=dict)

    def fill_mirror(self, root: Path, *, valid: bool = True) -> None:
        hashes = {path: texts[0 if valid else 1] for path, texts in self.published.items()}
        for path, data in {self.archive: CONTENT, **self.index, **hashes}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)


def list_hash(path: str, line: str) -> dict[str, tuple[bytes, bytes]]:
    return {path: (line.format(DIGEST).encode(), line.format(WRONG).encode())}


CODEX_PAGE = "@openai/codex/1.2.3"

LANGUAGES = {
    "go": ToolchainCase(
        GoToolchain("1.99.9", span=SPAN),
        LOCK_SECTIONS["go"],
        "go",
        "go1.99.9.linux-amd64.tar.gz",
        list_hash("go1.99.9.linux-amd64.tar.gz.sha256", "{}"),
    ),
    "nodejs": ToolchainCase(
        NodeToolchain("24.99.0", span=SPAN),
        LOCK_SECTIONS["nodejs"],
        "nodejs",
        "v24.99.0/node-v24.99.0-linux-x64.tar.xz",
        list_hash("v24.99.0/SHASUMS256.txt", "{}  node-v24.99.0-linux-x64.tar.xz\n"),
    ),
    "rust": ToolchainCase(
        RustToolchain("1.99.0", span=SPAN),
        LOCK_SECTIONS["rust"],
        "rust",
        "rust-1.99.0-x86_64-unknown-linux-gnu.tar.xz",
        list_hash(
            "rust-1.99.0-x86_64-unknown-linux-gnu.tar.xz.sha256",
            "{}  rust-1.99.0-x86_64-unknown-linux-gnu.tar.xz\n",
        ),
    ),
    "julia": ToolchainCase(
        JuliaToolchain("1.99.0", span=SPAN),
        LOCK_SECTIONS["julia"],
        "julia",
        "linux/x64/1.99/julia-1.99.0-linux-x86_64.tar.gz",
        list_hash("checksums/julia-1.99.0.sha256", "{}  julia-1.99.0-linux-x86_64.tar.gz\n"),
    ),
    "r": ToolchainCase(
        RPackages(("elixirs",), span=SPAN),
        R_PACKAGES,
        "cran",
        "src/contrib/elixirs_1.0.tar.gz",
        index={"src/contrib/PACKAGES.gz": gzip.compress(b"Package: elixirs\nVersion: 1.0\n")},
    ),
    "rstudio": ToolchainCase(
        RStudioServer("2024.12.1-563", span=SPAN),
        LOCK_SECTIONS["rstudio"],
        "rstudio",
        "jammy/amd64/rstudio-server-2024.12.1-563-amd64.deb",
    ),
    "codex": ToolchainCase(
        CodexAgent("1.2.3", span=SPAN),
        CODEX,
        "npm",
        "@openai/codex/-/codex-1.2.3-linux-x64.tgz",
        {
            f"{CODEX_PAGE}-linux-x64": (
                describe_codex("1.2.3-linux-x64", CONTENT),
                describe_codex("1.2.3-linux-x64", b"another"),
            )
        },
        {CODEX_PAGE: describe_codex("1.2.3", b"")},
    ),
}


@pytest.fixture(params=sorted(LANGUAGES))
def language(request: pytest.FixtureRequest) -> ToolchainCase:
    return LANGUAGES[request.param]


@pytest.fixture(autouse=True)
def own_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mirrors but a test's own, and no pauses between attempts."""
    for name in ("NODEJS_ORG_MIRROR", "NPM_CONFIG_REGISTRY", "RUSTUP_DIST_SERVER"):
        monkeypatch.delenv(name, raising=False)
    for language in LANGUAGES.values():
        monkeypatch.delenv(f"DANLU_MIRROR_{language.mirror.upper()}", raising=False)
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(4, 0.001))


def find_error(
    language: ToolchainCase, locker: SectionLocker, kind: type[DanluError]
) -> DanluError:
    """Return the error of locking; nothing must be left that a later build would use."""
    with pytest.raises(kind) as caught:
        locker.lock(language.section, language.call)
    assert caught.value.span == SPAN
    assert caught.value.hint
    assert locker.list_cached_files() == []
    return caught.value


def test_toolchain_of_a_mirror_is_locked_by_hash(language: ToolchainCase, tmp_path: Path) -> None:
    language.fill_mirror(tmp_path / "mirror")
    locker = SectionLocker(tmp_path, {language.mirror: str(tmp_path / "mirror")})
    (pin,) = locker.lock(language.section, language.call)
    assert (pin.sha256, pin.size) == (DIGEST, len(CONTENT))
    assert str(tmp_path) not in repr(pin)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("go", "Go 1.99.9 not found: debian12 has version 1.19", "[mirrors.go]"),
        ("nodejs", "Node.js 24.99.0 not found: debian12 has none", "[mirrors.nodejs]"),
        ("rust", "Rust 1.99.0 not found: debian12 has none", "[mirrors.rust]"),
        ("julia", "Julia 1.99.0 not found: debian12 has none", "[mirrors.julia]"),
        ("r", "R package elixirs not found on CRAN", "check the spelling"),
        ("rstudio", "RStudio Server 2024.12.1-563 not found: the mirror", "[mirrors.rstudio]"),
        ("codex", "Codex 1.2.3 not found on the npm registry", "rust-v0.98.0"),
    ],
)
def test_unknown_version_is_rejected_with_the_available_ones(
    tmp_path: Path, name: str, message: str, hint: str
) -> None:
    language = LANGUAGES[name]
    index = tmp_path / "mirror/src/contrib/PACKAGES.gz"
    index.parent.mkdir(parents=True)
    index.write_bytes(gzip.compress(b"Package: other\nVersion: 1.0\n"))
    locker = SectionLocker(tmp_path, {language.mirror: str(tmp_path / "mirror")})
    locker.debs["golang-go"] = "2:1.19~1"
    error = find_error(language, locker, ResolveError)
    assert error.exit_code == 2
    assert message in error.message
    assert hint in error.hint


def test_rstudio_without_a_system_that_it_is_built_for_is_refused(tmp_path: Path) -> None:
    locker = SectionLocker(tmp_path, {"rstudio": str(tmp_path)})
    locker.debs = {"libssl1.0.2": "1.0.2"}
    error = find_error(LANGUAGES["rstudio"], locker, ResolveError)
    assert "RStudio Server cannot be installed on debian12" in error.message


def test_rstudio_brings_r_and_the_program_that_changes_users(tmp_path: Path) -> None:
    language = LANGUAGES["rstudio"]
    language.fill_mirror(tmp_path / "mirror")
    locker = SectionLocker(tmp_path, {"rstudio": str(tmp_path / "mirror")})
    (pin,) = locker.lock(language.section, language.call)
    assert {"r-base-core", "sudo", "libpq5", "procps", "psmisc"} <= set(pin.system_packages())


def test_mirror_that_is_down_is_named_without_its_password(
    language: ToolchainCase, tmp_path: Path
) -> None:
    locker = SectionLocker(tmp_path, {language.mirror: "http://ada:hunter2@127.0.0.1:1"})
    error = find_error(language, locker, OutsideError)
    assert error.exit_code == 3
    assert "from http://127.0.0.1:1" in error.message
    assert "hunter2" not in f"{error.message} {error.hint} {error.details}"


@pytest.mark.parametrize("name", ["codex", "go", "julia", "nodejs", "rust"])
def test_archive_that_is_not_the_published_one_is_refused(tmp_path: Path, name: str) -> None:
    language = LANGUAGES[name]
    language.fill_mirror(tmp_path / "mirror", valid=False)
    locker = SectionLocker(tmp_path, {language.mirror: str(tmp_path / "mirror")})
    assert find_error(language, locker, ChecksumError).exit_code == 3


def test_archive_that_changed_since_it_was_locked_is_not_used(
    language: ToolchainCase, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    language.fill_mirror(mirror)
    locker = SectionLocker(tmp_path, {language.mirror: str(mirror)})
    (pin,) = locker.lock(language.section, language.call)
    (mirror / language.archive).write_bytes(b"another archive")
    cache = tmp_path / "empty"

    async def fetch_again() -> None:
        mirrors = (mirror.as_uri(),)
        await fetch_archive(
            language.mirror, language.archive, pin.sha256, mirrors=mirrors, cache=cache
        )

    with pytest.raises(ChecksumError) as caught:
        anyio.run(fetch_again)
    assert caught.value.exit_code == 3
    assert f"[mirrors.{language.mirror}]" in caught.value.hint
    assert not list(cache.rglob("*.*"))


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("rust", 2, "Rust cannot be installed on linux/riscv64"),
        ("julia", 2, "Julia cannot be installed on linux/riscv64"),
        ("go", 2, "the mirror 'go' has no go1.99.9.linux-riscv64.tar.gz"),
        ("nodejs", 2, "has no v24.99.0/node-v24.99.0-linux-riscv64.tar.xz"),
        ("codex", 2, "Codex cannot be installed on linux/riscv64"),
        ("rstudio", 2, "RStudio Server cannot be installed on linux/riscv64"),
    ],
)
def test_platform_without_a_build_is_rejected(
    tmp_path: Path, name: str, code: int, message: str
) -> None:
    language = LANGUAGES[name]
    language.fill_mirror(tmp_path / "mirror")
    locker = SectionLocker(tmp_path, {language.mirror: str(tmp_path / "mirror")}, "riscv64")
    error = find_error(language, locker, ResolveError)
    assert error.exit_code == code
    assert message in error.message


def test_vendor_that_is_not_cached_is_not_asked_offline(
    language: ToolchainCase, tmp_path: Path
) -> None:
    mirrors = {"npm": "https://npm.example.org"} if language.mirror == "npm" else {}
    error = find_error(language, SectionLocker(tmp_path, mirrors, offline=True), OutsideError)
    assert error.exit_code == 3
    assert "--offline" in f"{error.hint} {error.message}"


def test_missing_mirror_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = find_error(LANGUAGES["codex"], SectionLocker(tmp_path, {}), MachineError)
    assert error.exit_code == 4
    assert "no mirror is configured for npm" in error.message
    assert "[mirrors.npm]" in error.hint


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("r", {"src/contrib/PACKAGES.gz": b"<html>"}),
        ("codex", {CODEX_PAGE: b"<html>"}),
        ("codex", {CODEX_PAGE: b'{"version": "../../etc", "dist": {}}'}),
        ("codex", {f"{CODEX_PAGE}-linux-x64": b'{"version": "1.2.3", "dist": "x"}'}),
        ("codex", {f"{CODEX_PAGE}-linux-x64": b'{"version": "1.2.3", "dist": {}}'}),
        ("codex", {f"{CODEX_PAGE}-linux-x64": b'{"dist": {"integrity": "md5-AAAA"}}'}),
    ],
)
def test_damaged_answer_of_a_mirror_is_an_outside_error(
    tmp_path: Path, name: str, damaged: dict[str, bytes]
) -> None:
    language = LANGUAGES[name]
    language.fill_mirror(tmp_path / "mirror")
    for path, data in damaged.items():
        (tmp_path / "mirror" / path).write_bytes(data)
    locker = SectionLocker(tmp_path, {language.mirror: str(tmp_path / "mirror")})
    with pytest.raises(OutsideError) as caught:
        locker.lock(language.section, language.call)
    assert caught.value.span == SPAN
