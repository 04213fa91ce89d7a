"""Mirrors for the build files of envd's repository, like those of a company.

Everything is made here of what can be reached: packages for conda are wheels and the
distribution's Python under their true names and versions, images are built by danlu under the
names that the files use. Where nothing real can be reached (Julia and its packages, pixi, RStudio
Server, an extension of VS Code, two packages of CRAN), a stand-in says so when it runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from pip._internal.models.index import PyPI

from tests.conftest import Danlu
from tests.e2e.conftest import Project
from tests.e2e.cran import add_package, write_index
from tests.fakes.conda import (
    CondaFile,
    index_channel,
    write_interpreter,
    write_package,
    write_wheel_package,
)
from tests.fakes.julia import JuliaServer

PYTHON = "3.11"

#: Images by name, with what they contain over Debian. The libraries are those that conda's own
#: Python contains, and the distribution's, its replacement, is linked with.
_LIBRARIES = (
    *("libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libreadline8"),
    *("libsqlite3-0", "libssl3", "libuuid1", "zlib1g"),
)
_UBUNTU = (f"install.apt_packages({list(_LIBRARIES)})",)
_PYTHON = (f'install.python("{PYTHON}")',)
IMAGES: Mapping[str, tuple[str, ...]] = {
    "ubuntu:22.04": _UBUNTU,
    "nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04": _UBUNTU,
    "nvidia/cuda:11.6.2-cudnn8-runtime-ubuntu20.04": _UBUNTU,
    "python:3.11-slim": _PYTHON,
    "ghcr.io/pytorch/pytorch-nightly:latest": _PYTHON,
}

#: Channels that the files name, all of which have all packages here.
_CHANNELS = (
    *("conda-forge", "dglteam", "pytorch"),
    *("pkgs/main", "pkgs/r", "pkgs/msys2", "pkgs/free"),
)

#: The release of PyTorch without CUDA, which a separate index has and PyPI does not.
TORCH = "2.13.0+cpu"

_PIP_INDEX = re.compile(r'^ *config\.pip_index\(url="https://([^"]+)/simple"', re.MULTILINE)

_STAND_IN = "#!/bin/sh\necho {}: a stand-in of a test\n"


def build_images(danlu: Danlu, directory: Path) -> None:
    """Build the images that a registry does not answer for."""
    for number, (name, lines) in enumerate(IMAGES.items()):
        project = Project(directory / f"image-{number}", danlu)
        project.directory.mkdir()
        if project("image", "pull", name, check=False).returncode:
            project.write(*lines)
            project("build", "-t", name)


def find_python_mirrors(checkout: Path) -> dict[str, str]:
    """Return this machine's own index for each index that a build file of ``checkout`` sets."""
    index = os.environ.get("PIP_INDEX_URL", "") or PyPI.simple_url
    files = (path.read_text() for path in checkout.rglob("*.envd"))
    return {
        name: index.removesuffix("/simple") for text in files for name in _PIP_INDEX.findall(text)
    }


def write_mirrors(danlu: Danlu, directory: Path, config: Path, checkout: Path) -> None:
    """Fill mirrors in ``directory``, and name them in danlu's ``config`` file."""
    channel = directory / "conda"
    julia_server = JuliaServer(directory / "julia-packages")
    write_channel(danlu, channel, directory / "files")
    write_extensions(directory / "openvsx")
    write_cran(directory / "cran")
    write_julia(directory / "julia")
    write_rstudio(directory / "rstudio")
    for name in ("Example", "Flux", "JSON", "MLDatasets"):
        julia_server.publish(name)
    write_torch_index(directory / "torch", directory / "files")
    mirrors = {
        **dict.fromkeys(_CHANNELS, channel.as_uri()),
        **{
            name: str(directory / name)
            for name in ("openvsx", "cran", "julia", "julia-packages", "rstudio")
        },
        "download.pytorch.org": (directory / "torch").as_uri(),
        **find_python_mirrors(checkout),
    }
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(
        "".join(f'[mirrors."{name}"]\nurls = ["{url}"]\n' for name, url in mirrors.items())
    )


def git_environment(directory: Path) -> dict[str, str]:
    """Return the variables that make git find envd's library in ``directory``."""
    library = directory / "envdlib"
    library.mkdir()
    (library / "monitoring.envd").write_text(
        "def tensorboard(envd_port=6006, envd_dir='/home/envd/logs', host_port=0, host_dir=''):\n"
        "    install.python_packages(['tensorboard'])\n"
        "    runtime.daemon(commands=[['tensorboard', '--logdir', envd_dir]])\n"
        "    runtime.expose(envd_port=envd_port, host_port=host_port, service='tensorboard')\n"
    )
    person = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*person, "commit", "-q", "-m", "A library")):
        subprocess.run(["git", *arguments], cwd=library, check=True)
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{library}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/tensorchord/envdlib",
    }


def write_channel(danlu: Danlu, channel: Path, files: Path) -> None:
    """Write a channel with Python, and the packages that the files name."""
    wheels = download_wheels(files, ("pip", "babel", "dgl==2.1.0"))
    write_interpreter(channel, unpack_python(danlu, files), f"{PYTHON}.2")
    for wheel in wheels:
        write_wheel_package(channel, wheel)
    for name, version in (("pixi", "0.59.0"), ("pytorch", "1.12.1"), ("cudatoolkit", "11.3.1")):
        program = CondaFile(_STAND_IN.format(f"{name} {version}").encode(), 0o755)
        write_package(channel, name, version, files={f"bin/{name}": program})
    index_channel(channel)


def unpack_python(danlu: Danlu, directory: Path) -> Path:
    """Return a directory with the files of the distribution's Python."""
    source = Project(directory / "source", danlu)
    source.directory.mkdir(parents=True)
    source.write(f'install.apt_packages(["python{PYTHON}"])')
    paths = (f"usr/bin/python{PYTHON}", f"usr/lib/python{PYTHON}")
    archive = ("tar", "-C", "/", "-cf", "/out/files.tar", *paths)
    source("run", "-v", f"{directory}:/out", "--", *archive)
    with tarfile.open(directory / "files.tar") as files:
        files.extractall(directory / "root", filter="tar")
    return directory / "root"


def download_wheels(directory: Path, requirements: Iterable[str]) -> list[Path]:
    """Download wheels with the configured pip; skip those that no index has."""
    for requirement in requirements:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", requirement]
        options = ["-d", str(directory), "--only-binary", ":all:", "--python-version", PYTHON]
        subprocess.run([*command, *options], check=False)
    return sorted(directory.glob("*.whl"))


def write_torch_index(index: Path, files: Path) -> None:
    """Write PyTorch's index: every directory of it has the wheels that can be reached."""
    wheels = download_wheels(files / "torch", (f"torch=={TORCH}",))
    for channel in ("cpu", "cu113", "cu116", "cu126", "nightly/cu117"):
        page = index / "whl" / channel / "torch" / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("".join(f'<a href="{file.as_uri()}">{file.name}</a>' for file in wheels))


def write_extensions(directory: Path) -> None:
    """Write a registry of one extension of VS Code, as a directory of files."""
    publisher, name, version = "ms-python", "python", "2025.18.0"
    directory.mkdir()
    entry = {"namespace": publisher, "name": name, "version": version}
    (directory / name).write_text(json.dumps(entry))
    manifest = {"publisher": publisher, "name": name, "version": version, "engines": {}}
    with zipfile.ZipFile(directory / f"{publisher}.{name}-{version}.vsix", "w") as archive:
        archive.writestr("extension.vsixmanifest", "<PackageManifest/>")
        archive.writestr("extension/package.json", json.dumps(manifest))


def write_cran(mirror: Path) -> None:
    """Write a mirror of CRAN with the packages that the distribution does not have."""
    code = {"R/say.R": "say <- function() 'a stand-in of a test'\n"}
    write_index(
        mirror, *(add_package(mirror, name, files=code) for name in ("mlr3", "mlr3learners"))
    )


def write_julia(mirror: Path) -> None:
    """Write the archive of Julia that danlu installs by default, with its checksum."""
    version = "1.10.10"
    file = f"julia-{version}-linux-x86_64.tar.gz"
    data = _STAND_IN.format(f"julia version {version}").encode()
    mirror.mkdir()
    with tarfile.open(mirror / file, "w:gz") as archive:
        member = tarfile.TarInfo(f"julia-{version}/bin/julia")
        member.size, member.mode = len(data), 0o755
        archive.addfile(member, io.BytesIO(data))
    digest = hashlib.sha256((mirror / file).read_bytes()).hexdigest()
    (mirror / f"julia-{version}.sha256").write_text(f"{digest}  {file}\n")


def write_rstudio(mirror: Path) -> None:
    """Write the package of RStudio Server that danlu installs by default."""
    package = mirror / "package"
    control = ("Package: rstudio-server", "Version: 1", "Architecture: amd64")
    described = ("Maintainer: Ada <ada@example.org>", "Description: a stand-in of a test")
    for path, text in {
        "DEBIAN/control": "\n".join((*control, *described, "")),
        "usr/lib/rstudio-server/bin/rserver": _STAND_IN.format("rserver"),
    }.items():
        file = package / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    file = mirror / "rstudio-server-2024.12.1-563-amd64.deb"
    command = ["dpkg-deb", "--root-owner-group", "-b", str(package), str(file)]
    subprocess.run(command, check=True, capture_output=True)


def pip_environment(directory: Path) -> dict[str, str]:
    """Return the variables that choose PyTorch without CUDA, which would be ten times as large."""
    constraints = directory / "constraints.txt"
    constraints.write_text(f"torch=={TORCH}\n")
    own = os.environ.get("PIP_CONSTRAINT", "")
    return {"PIP_CONSTRAINT": f"{own} {constraints}".strip()}
