"""Calls that cannot be locked: one error with its exit code, and an unchanged lock.

Mirrors, channels and indexes are local. What the resolver of a single function says is tested in
``tests/resolve`` and ``tests/sources``; here the real program must leave the project unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import program_in
from tests.e2e.conftest import Project
from tests.e2e.cran import add_package, write_index
from tests.e2e.test_languages import write_archive
from tests.fakes.conda import CondaFile, index_channel, write_package
from tests.fakes.julia import JuliaServer
from tests.fakes.openvsx import FakeExtensionRegistry, make_vsix, serve_registry
from tests.resolve.test_standalone import make_archive

pytestmark = pytest.mark.real

#: Nothing listens there, and the password must not be shown.
DOWN = "http://ada:hunter2@127.0.0.1:9"

#: The program without pauses between its attempts to connect.
PROGRAM = (
    "import sys, danlu.sources.http as http; http._RETRY_POLICY = http.RetryPolicy(4, 0);"
    " from danlu.cli.__main__ import main; sys.exit(main())"
)

RUST = "rust-1.99.0-x86_64-unknown-linux-gnu.tar.xz"
NODE = "node-v99.9.0-linux-x64.tar.xz"
GO = "go1.99.9.linux-amd64.tar.gz"
JULIA = "julia-1.99.0-linux-x86_64.tar.gz"
PYTHON = "cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"


@dataclass
class BadCall:
    """Lines that cannot be locked, with the error; ``{place}`` is the directory of mirrors.

    ``mirrors`` are values of ``DANLU_MIRROR_NAME``. ``line`` is the one of the build file that the
    error must name; 0 if the error is about none.
    """

    lines: tuple[str, ...]
    code: int
    message: str
    mirrors: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    line: int = 3


def call(
    *lines: str, code: int, says: str, options: tuple[str, ...] = (), line: int = 3, **mirrors: str
) -> BadCall:
    return BadCall(lines, code, says, mirrors, options, line)


def conda(*names: str) -> str:
    return f"install.conda_packages({list(names)}, channel=['nodefaults', '{{place}}/conda'])"


def index(url: str) -> str:
    return f"config.pip_index(url='{url}')"


JULIA_110 = 'install.julia("1.10.10")'
ARM64 = ("--platform", "linux/arm64")

CALLS = {
    # A version or package that does not exist.
    "unknown-go": call('install.go("1.99.8")', code=2, says="Go 1.99.8 not found", GO="files"),
    "unknown-nodejs": call(
        'install.nodejs("99.8")', code=2, says="Node.js 99.8 not found", NODEJS="files"
    ),
    "unknown-rust": call(
        'install.rust("1.99.8")', code=2, says="Rust 1.99.8 not found", RUST="files"
    ),
    "unknown-julia": call(
        'install.julia("1.99.8")', code=2, says="Julia 1.99.8 not found", JULIA="files"
    ),
    "unknown-codex": call(
        'install.codex("9.9.8")', code=2, says="Codex 9.9.8 not found", NPM="files"
    ),
    "unknown-rstudio": call(
        'config.rstudio_server("2099.01.1-1")',
        code=2,
        says="RStudio Server 2099.01.1-1 not found",
        RSTUDIO="files",
    ),
    "unknown-r-package": call(
        "install.r_packages(['elixir'])", code=2, says="elixir not found on CRAN", CRAN="cran"
    ),
    "unknown-julia-package": call(
        JULIA_110,
        'install.julia_packages(["Rune"])',
        code=2,
        says="Julia package Rune not found",
        JULIA="files",
        JULIA_PACKAGES="julia-packages",
        line=4,
    ),
    "unknown-extension": call(
        'install.vscode_extensions(["a.none"])', code=2, says="extension a.none not found"
    ),
    "unknown-conda-package": call(
        conda("hello", "helo"), code=2, says="conda package helo not found for linux-64"
    ),
    "unknown-conda-version": call(conda("hello=9"), code=2, says="hello 9.* not found"),
    "unknown-pixi": call(
        "config.conda_channel('channels: [\"{place}/conda\"]')",
        "install.pixi()",
        code=2,
        says="conda package pixi not found",
        line=4,
    ),
    "unknown-cuda": call('install.cuda("12.7")', code=2, says="unknown version of CUDA: 12.7"),
    "unknown-python": call(
        'install.python("3.99")', code=2, says="Python 3.99 has no standalone build", PYTHON="files"
    ),
    "unknown-uv-python": call(
        'install.uv(python_version="3.99")',
        code=2,
        says="Python 3.99 has no standalone build",
        PYTHON="files",
    ),
    "missing-python": call(
        'install.python("3.12")', code=4, says="no mirror has a standalone build", PYTHON="files"
    ),
    "missing-uv-python": call(
        'install.uv(python_version="3.12")',
        code=4,
        says="no mirror has a standalone build",
        PYTHON="files",
    ),
    # A mirror, channel or index that does not answer.
    "down-go": call('install.go("1.99.9")', code=3, says="127.0.0.1:9", GO=DOWN),
    "down-nodejs": call('install.nodejs("99.9.0")', code=3, says="127.0.0.1:9", NODEJS=DOWN),
    "down-rust": call('install.rust("1.99.0")', code=3, says="127.0.0.1:9", RUST=DOWN),
    "down-julia": call('install.julia("1.99.0")', code=3, says="127.0.0.1:9", JULIA=DOWN),
    "down-codex": call("install.codex()", code=3, says="127.0.0.1:9", NPM=DOWN),
    "down-rstudio": call("config.rstudio_server()", code=3, says="127.0.0.1:9", RSTUDIO=DOWN),
    "down-julia-packages": call(
        JULIA_110,
        'install.julia_packages(["Runes"])',
        code=3,
        says="127.0.0.1:9",
        JULIA="files",
        JULIA_PACKAGES=DOWN,
        line=4,
    ),
    "down-openvsx": call(
        'install.vscode_extensions(["a.one"])', code=3, says="127.0.0.1:9", OPENVSX=DOWN
    ),
    "down-conda": call(
        f"install.conda_packages(['hello'], channel=['nodefaults', '{DOWN}'])",
        code=3,
        says="cannot read conda channel http://127.0.0.1:9",
    ),
    "down-pixi": call(
        f"config.conda_channel('channels: [\"{DOWN}\"]')",
        "install.pixi()",
        code=3,
        says="cannot read conda channel",
        line=4,
    ),
    "down-cuda": call(
        'install.cuda("12.4.1", cudnn="", flavor="base")',
        index(f"{DOWN}/simple"),
        code=3,
        says="cannot reach the package index",
        line=4,
    ),
    "down-python": call('install.python("3.12")', code=3, says="127.0.0.1:9", PYTHON=DOWN),
    "down-uv": call(
        "install.uv()",
        index(f"{DOWN}/simple"),
        code=3,
        says="cannot reach the package index",
        line=4,
    ),
    "down-uv-python": call(
        'install.uv(python_version="3.12")', code=3, says="127.0.0.1:9", PYTHON=DOWN
    ),
    # Other bytes than were published.
    "changed-go": call('install.go("1.99.9")', code=3, says="checksum mismatch", GO="changed"),
    "changed-nodejs": call(
        'install.nodejs("99.9.0")', code=3, says="checksum mismatch", NODEJS="changed"
    ),
    "changed-rust": call(
        'install.rust("1.99.0")', code=3, says="checksum mismatch", RUST="changed"
    ),
    "changed-julia": call(
        'install.julia("1.99.0")', code=3, says="checksum mismatch", JULIA="changed"
    ),
    "changed-codex": call(
        'install.codex("9.9.9")', code=3, says="does not match the registry's hash", NPM="changed"
    ),
    "changed-julia-package": call(
        JULIA_110,
        'install.julia_packages(["Runes"])',
        code=3,
        says="Runes",
        JULIA="files",
        JULIA_PACKAGES="changed-julia-packages",
        line=4,
    ),
    "changed-extension": call(
        'install.vscode_extensions(["a.changed"])', code=3, says="contains b.other 1.0.0"
    ),
    "changed-python": call(
        'install.python("3.12.8")', code=3, says="checksum mismatch", PYTHON="changed"
    ),
    # Requirements that exclude each other.
    "unsolvable-conda": call(
        conda("old", "new"), code=2, says="conda packages cannot be installed together"
    ),
    "unsolvable-conda-cuda": call(conda("gpu"), code=2, says="__cuda >=12"),
    "unsolvable-cuda": call(
        'install.cuda("11.8.0", cudnn="", flavor="base")',
        'install.python_packages(["nvidia-cuda-runtime-cu11==11.7.99"])',
        code=2,
        says='use install.cuda(version="11.7")',
        line=3,
    ),
    "unsolvable-r-package": call(
        "install.r_packages(['orphan'])", code=2, says="which orphan needs", CRAN="cran"
    ),
    "unsolvable-julia-packages": call(
        JULIA_110,
        'install.julia_packages(["Grimoire", "Runes@2"])',
        code=2,
        says="no versions of the Julia packages fit together",
        JULIA="files",
        JULIA_PACKAGES="julia-packages",
        line=4,
    ),
    "unsolvable-extensions": call(
        'install.vscode_extensions(["a.one-1.0.0", "a.one-2.0.0"])',
        code=2,
        says="in version 2.0.0, and in version 1.0.0",
    ),
    # Nothing for the platform.
    "platform-conda": call(
        conda("binary"), code=2, says="binary not found for linux-aarch64", options=ARM64
    ),
    "platform-codex": call(
        'install.codex("9.9.9")', code=3, says="has no file", NPM="amd64", options=ARM64
    ),
    "platform-go": call(
        'install.go("1.99.9")',
        code=2,
        says="has no go1.99.9.linux-arm64",
        GO="amd64",
        options=ARM64,
    ),
    "platform-extension": call(
        'install.vscode_extensions(["a.mac"])', code=2, says="has no build for linux-x64"
    ),
    "platform-python": call(
        'install.python("3.12")', code=4, says="aarch64", PYTHON="amd64", options=ARM64
    ),
    "platform-unknown": call(
        conda("hello"),
        code=2,
        says="cannot build for linux/riscv64",
        options=("--platform", "linux/riscv64"),
        line=0,
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mirrors in a directory: ``files`` are as published, those of ``changed*`` are not."""
    directory = tmp_path_factory.mktemp("mirrors")
    fill_vendor_mirrors(directory)
    fill_channel(directory / "conda")
    stanza = add_package(directory / "cran", "orphan", fields={"Imports": "missing.package"})
    write_index(directory / "cran", stanza)
    for name in ("julia-packages", "changed-julia-packages"):
        server = JuliaServer(directory / name)
        server.publish("Runes", "1.0.0")
        server.publish("Runes", "2.0.0")
        server.publish("Grimoire", needs={"Runes": "1"})
    for file in (directory / "changed-julia-packages" / "package").rglob("*"):
        if file.is_file():
            file.write_bytes(gzip.compress(b"other bytes"))
    return directory


def fill_vendor_mirrors(place: Path) -> None:
    """Write archives of Julia 1.10.10, and of other toolchains with the hashes of other bytes."""
    program = {"julia-1.10.10/bin/julia": "#!/bin/sh\n"}
    write_archive(place / "files/linux/x64/1.10/julia-1.10.10-linux-x86_64.tar.gz", program)
    changed = place / "changed"
    other = hashlib.sha256(b"what was published").hexdigest()
    hashes = {
        GO: (f"{GO}.sha256", other),
        f"v99.9.0/{NODE}": ("v99.9.0/SHASUMS256.txt", f"{other}  {NODE}\n"),
        RUST: (f"{RUST}.sha256", f"{other}  {RUST}\n"),
        f"linux/x64/1.99/{JULIA}": ("checksums/julia-1.99.0.sha256", f"{other}  {JULIA}\n"),
        f"20241219/{PYTHON}": ("20241219/SHA256SUMS", f"{other}  {PYTHON}\n"),
    }
    for archive, (file, text) in hashes.items():
        write_archive(changed / archive, {"other": "bytes"})
        (changed / file).parent.mkdir(parents=True, exist_ok=True)
        (changed / file).write_text(text)
    publish_codex(changed, b"what was published", "9.9.9", "9.9.9-linux-x64")
    publish_codex(place / "amd64", None, "9.9.9", "9.9.9-linux-x64")
    write_archive(place / "amd64" / GO, {"go/bin/go": "#!/bin/sh\n"})
    (place / "amd64" / PYTHON).write_bytes(make_archive())


def publish_codex(mirror: Path, published: bytes | None, *versions: str) -> None:
    """Write the program for amd64, and metadata with its hash, or with that of other bytes."""
    package = mirror / "@openai/codex"
    archive = package / "-/codex-9.9.9-linux-x64.tgz"
    write_archive(archive, {"package/package.json": "{}"})
    data = archive.read_bytes() if published is None else published
    integrity = b64encode(hashlib.sha512(data).digest()).decode()
    for version in versions:
        metadata = {"version": version, "dist": {"integrity": f"sha512-{integrity}"}}
        (package / version).write_text(json.dumps(metadata))


def fill_channel(channel: Path) -> None:
    """Write a channel with packages that do not fit together."""
    write_package(channel, "hello", noarch="generic", files={"share/hello": CondaFile(b"1")})
    write_package(channel, "old", depends=["library <2"], noarch="generic")
    write_package(channel, "new", depends=["library >=2"], noarch="generic")
    write_package(channel, "library", "1.0")
    write_package(channel, "library", "2.0")
    write_package(channel, "binary")
    write_package(channel, "gpu", depends=["__cuda >=12"])
    index_channel(channel)


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeExtensionRegistry]:
    """Extensions: two versions of one, one for macOS only, and one that contains another."""
    with serve_registry() as served:
        fill_registry(served)
        yield served


def fill_registry(registry: FakeExtensionRegistry) -> None:
    for version in ("1.0.0", "2.0.0"):
        registry.publish("a.one", version, make_vsix("a.one", version))
    registry.publish("a.mac", "1.0.0", make_vsix("a.mac", "1.0.0"), platform="darwin-arm64")
    registry.publish("a.changed", "1.0.0", make_vsix("b.other", "1.0.0"))


@pytest.fixture(scope="module")
def base_lock(tmp_path_factory: pytest.TempPathFactory, real_home: Path) -> bytes:
    """The lock of an environment without packages."""
    project = Project(tmp_path_factory.mktemp("locked"), program_in(real_home))
    project.write()
    project("lock")
    return (project.directory / "danlu.lock").read_bytes()


def read_project(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("name", CALLS)
def test_call_that_cannot_be_locked_is_one_error_and_changes_nothing(
    project: Project,
    place: Path,
    registry: FakeExtensionRegistry,
    base_lock: bytes,
    real_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    bad = CALLS[name]
    for mirror, value in {"OPENVSX": registry.url, **bad.mirrors}.items():
        url = value if "://" in value else str(place / value)
        monkeypatch.setenv(f"DANLU_MIRROR_{mirror}", url)
    project.write(*(line.replace("{place}", str(place)) for line in bad.lines))
    if not bad.options:  # with a platform, the first of two is resolved
        (project.directory / "danlu.lock").write_bytes(base_lock)
    before = read_project(project.directory)
    environ = {"DANLU_HOME": str(real_home), "UV_HTTP_RETRIES": "0"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "lock", *bad.options],
        cwd=project.directory,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == bad.code, result.stderr
    assert result.stderr.count("error:") == 1
    assert bad.message in result.stderr
    assert f"--> build.envd:{bad.line}:" in result.stderr or not bad.line
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr
    assert "hunter2" not in result.stderr
    assert read_project(project.directory) == before
