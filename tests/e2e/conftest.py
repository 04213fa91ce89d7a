"""Projects for tests that run the real program."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Danlu, program_in
from tests.fakes.conda import (
    CondaFile,
    index_channel,
    write_interpreter,
    write_package,
    write_wheel_package,
)

BASE = '    base(os="debian12")\n'


@dataclass
class Project:
    """A directory with a build file, and the program run in it."""

    directory: Path
    danlu: Danlu

    def write(self, *lines: str, head: str = "", base: str = BASE) -> None:
        """A ``build.envd`` whose function holds ``lines`` after the base."""
        body = "".join(f"    {line}\n" for line in lines)
        (self.directory / "build.envd").write_text(f"{head}def build():\n{base}{body}")

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.danlu(*arguments, cwd=self.directory, **options)

    def run(self, *arguments: str) -> str:
        """Run a command in the environment and return its stdout."""
        return self("run", "--", *arguments).stdout.strip()

    def build(self, *arguments: str) -> dict[str, Any]:
        """The metadata of a build."""
        file = self.directory.parent / f"{self.directory.name}.metadata.json"
        self("build", "--metadata-file", str(file), *arguments)
        value: dict[str, Any] = json.loads(file.read_text())
        return value


def edit_lock(project: Project, before: str, after: str) -> None:
    """Edit the lock as if danlu had written it so."""
    file = project.directory / "danlu.lock"
    text = file.read_text()
    assert before in text
    file.write_text(re.sub("(?m)^digest = .*\n", "", text).replace(before, after))


def start(project: Project, home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the real program with the home ``home``, in a new session."""
    danlu = Path(sys.executable).with_name("danlu")
    return subprocess.Popen(
        [str(danlu), *arguments],
        cwd=project.directory,
        env={**os.environ, "DANLU_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Return what a successful program printed."""
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out


@pytest.fixture
def http_directory(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An HTTP server's address, and the directory it serves."""
    directory = tmp_path / "served"
    directory.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", directory
        server.shutdown()
        thread.join()


@pytest.fixture
def project(tmp_path: Path, danlu: Danlu, own_channels: Path) -> Project:
    """An empty project."""
    directory = tmp_path / "project"
    directory.mkdir()
    return Project(directory, danlu)


@pytest.fixture
def own_channels(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A ``.condarc`` of the user that names the directories of tests, which are no project's."""
    file = tmp_path / "condarc"
    file.write_text(f"custom_multichannels: {{tests: ['{tmp_path_factory.getbasetemp()}']}}\n")
    monkeypatch.setenv("CONDARC", str(file))
    return file


@pytest.fixture(scope="session")
def python_channel(tmp_path_factory: pytest.TempPathFactory, real_home: Path) -> Path:
    """A channel with a real Python: Debian's, repackaged for conda, with pip and six."""
    directory = tmp_path_factory.mktemp("conda")
    source = Project(directory / "source", program_in(real_home))
    source.directory.mkdir()
    source.write('install.apt_packages(["python3.11"])')
    archive = (
        "tar",
        "-C",
        "/",
        "-cf",
        "/out/files.tar",
        "usr/bin/python3.11",
        "usr/lib/python3.11",
    )
    source("run", "-v", f"{directory}:/out", "--", *archive)
    with tarfile.open(directory / "files.tar") as files:
        files.extractall(directory / "root")
    channel = directory / "channel"
    write_interpreter(channel, directory / "root", "3.11.2")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(directory)]
    subprocess.run([*command, "pip", "six==1.16.0"], check=True)
    for wheel in directory.glob("*.whl"):
        write_wheel_package(channel, wheel)
    greet = CondaFile(b"import six, sys\ndef main(): print(six.__version__, sys.prefix)\n")
    files_of_greet = {"site-packages/greet.py": greet}
    write_package(
        channel, "greet", files=files_of_greet, depends=["python >=3.8", "six"], noarch="python",
        entry_points=["greet = greet:main"],
    )  # fmt: skip
    index_channel(channel)
    return channel
