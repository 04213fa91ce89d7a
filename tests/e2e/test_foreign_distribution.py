"""A base of another distribution, from a local mirror that is signed with its own key.

Ubuntu's archive is not reachable everywhere. Its stand-in has Debian's real packages under Ubuntu's
names (origin, codename), so that everything but the content is as on Ubuntu's mirrors.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import program_in, remove_tree
from tests.e2e.conftest import Project

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("gpg"),
    pytest.mark.needs("dpkg-scanpackages"),
]

_DEB = re.compile(r'name = "([^"]+)".*?sha256 = "([0-9a-f]{64})".*?path = "([^"]+)"')


@dataclass
class SignedMirror:
    """A signed archive, its address, and the key it is signed with."""

    root: Path
    url: str
    keyring: Path

    def configure(self, home: Path, *, keyring: bool = True) -> None:
        lines = ["[mirrors.ubuntu]", f'urls = ["{self.url}"]']
        lines += [f'keyring = "{self.keyring}"'] if keyring else []
        (home / "config").mkdir(parents=True, exist_ok=True)
        (home / "config/config.toml").write_text("\n".join(lines) + "\n")


def sign(root: Path, gnupg: Path) -> None:
    suite = root / "dists/noble"
    packages = suite / "main/binary-amd64/Packages"
    packages.parent.mkdir(parents=True, exist_ok=True)
    scan = ["dpkg-scanpackages", "--multiversion", "pool"]
    packages.write_bytes(subprocess.run(scan, cwd=root, check=True, capture_output=True).stdout)
    data = packages.read_bytes()
    (suite / "Release").write_text(
        "Origin: Ubuntu\nLabel: Ubuntu\nSuite: noble\nCodename: noble\nVersion: 24.04\n"
        "Date: Thu, 25 Apr 2024 15:10:33 UTC\nArchitectures: amd64\nComponents: main\nSHA256:\n"
        f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/Packages\n"
    )
    gpg = ["gpg", "--homedir", str(gnupg), "--batch", "--yes", "--clearsign", "-o"]
    subprocess.run([*gpg, "InRelease", "Release"], cwd=suite, check=True, capture_output=True)
    (suite / "Release").unlink()


@pytest.fixture
def mirror(project: Project, real_home: Path, tmp_path: Path) -> Iterator[SignedMirror]:
    """The packages of a small Debian system as Ubuntu 24.04."""
    project.write('install.apt_packages(["file"])')
    project.build()
    lock = (project.directory / "danlu.lock").read_text()
    (project.directory / "danlu.lock").unlink()
    root = tmp_path / "mirror"
    for _, sha256, path in _DEB.findall(lock):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(real_home / "cache/apt/debs" / f"{sha256}.deb", root / path)
    gnupg = tmp_path / "gnupg"
    gnupg.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(gnupg), "--batch", "--passphrase", ""]
    key = ["--quick-gen-key", "mirror@example.org", "rsa2048", "sign"]
    subprocess.run([*gpg, *key], check=True, capture_output=True)
    keyring = tmp_path / "mirror.gpg"
    subprocess.run([*gpg, "--output", str(keyring), "--export"], check=True, capture_output=True)
    sign(root, gnupg)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield SignedMirror(root, f"http://127.0.0.1:{server.server_port}", keyring)
        server.shutdown()
        thread.join()
    subprocess.run(["gpgconf", "--homedir", str(gnupg), "--kill", "all"], check=False)


@pytest.fixture
def elsewhere(project: Project, real_home: Path) -> Iterator[Project]:
    """The project with a separate home, whose configuration tests may change."""
    home = real_home.with_name(f"{real_home.name}-foreign")
    home.mkdir(parents=True)
    yield Project(project.directory, program_in(home))
    remove_tree(home)


def home_of(real_home: Path) -> Path:
    return real_home.with_name(f"{real_home.name}-foreign")


@pytest.mark.slow
def test_ubuntu_is_built_from_a_signed_mirror(
    mirror: SignedMirror, elsewhere: Project, real_home: Path
) -> None:
    elsewhere.write('install.apt_packages(["file"])', base='    base(os="ubuntu24.04")\n')
    refused = elsewhere("build", check=False)
    assert refused.returncode == 4
    assert "[mirrors.ubuntu]" in refused.stderr
    mirror.configure(home_of(real_home))
    first = elsewhere.build()
    assert "file-" in elsewhere.run("file", "--version")
    assert elsewhere.run("dpkg", "--audit") == ""
    lock = (elsewhere.directory / "danlu.lock").read_text()
    assert 'codename = "noble"' in lock
    assert mirror.url not in lock
    assert elsewhere.build("--no-cache")["image"]["config"] == first["image"]["config"]
    assert mirror.url not in elsewhere.run("cat", "/etc/apt/sources.list")


def test_the_keys_of_ubuntu_come_from_debian_and_refuse_another_signer(
    mirror: SignedMirror, elsewhere: Project, real_home: Path
) -> None:
    elsewhere.write(base='    base(os="ubuntu24.04")\n')
    mirror.configure(home_of(real_home), keyring=False)
    refused = elsewhere("lock", check=False)
    assert refused.returncode == 4
    assert "the key is not trusted" in refused.stderr
    assert not (elsewhere.directory / "danlu.lock").exists()
    keyring = home_of(real_home) / "cache/apt/keyrings/ubuntu-archive-keyring.gpg"
    output = ["gpg", "--show-keys", "--with-colons", str(keyring)]
    keys = subprocess.run(output, check=True, capture_output=True, text=True).stdout
    assert "F6ECB3762474EDA9D21B7022871920D1991BC93C" in keys, "Ubuntu's signing key of 2018"


def test_a_package_that_differs_from_the_signed_list_is_refused(
    mirror: SignedMirror, elsewhere: Project, real_home: Path
) -> None:
    elsewhere.write(base='    base(os="ubuntu24.04")\n')
    mirror.configure(home_of(real_home))
    elsewhere("lock")
    package = next(mirror.root.glob("pool/**/base-files_*.deb"))
    package.write_bytes(package.read_bytes()[:-1] + b"x")
    refused = elsewhere("build", check=False)
    assert refused.returncode == 3
    assert "base-files" in refused.stderr
    assert json.loads(elsewhere("image", "ls", "--format", "json").stdout) == []
