"""Images pushed, pulled, built upon, and run by other engines."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import remove_tree
from tests.e2e.conftest import Project
from tests.engines import ENGINES, Engine, missing
from tests.oci.registries import debian_registry

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("docker-registry"),
]


@dataclass
class RegistryServer:
    """A real registry with a log of its recent requests."""

    host: str
    log: Path
    seen: int = 0

    def uploads(self) -> list[str]:
        """Return the uploads since the last call: ``blob`` or ``manifest`` each."""
        lines = self.log.read_text().splitlines()
        new, self.seen = lines[self.seen :], len(lines)
        put = [line for line in new if re.search(r'"PUT /v2/\S+ HTTP/1.1" 201', line)]
        return ["manifest" if "/manifests/" in line else "blob" for line in put]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    log = tmp_path / "registry.log"
    log.touch()
    with debian_registry(log=log) as host:
        yield RegistryServer(host, log)


def packages(*names: str) -> str:
    return f"install.python_packages(name={list(names)!r})"


def test_after_one_package_a_push_moves_that_package_and_the_manifest(
    project: Project, registry: RegistryServer
) -> None:
    name = f"{registry.host}/team/env:1"
    project.write(packages("numpy", "six"))
    project("build", "-t", name, "--push")
    first = registry.uploads()
    assert first.count("manifest") == 1
    assert first.count("blob") > 5
    project.write(packages("numpy", "six", "tqdm"))
    project("build", "-t", name, "--push")
    # The wheel's layer, the image's configuration, the manifest.
    assert sorted(registry.uploads()) == ["blob", "blob", "manifest"]
    project("build", "-t", name, "--push")
    assert registry.uploads().count("blob") == 0
    # What the build recorded about the image's Python outlives a pull of the same image.
    project("image", "pull", name)
    assert "note: the image has no bytecode" in project("image", "push", name).stderr


def test_an_image_pulled_into_an_empty_store_is_the_same(
    project: Project, registry: RegistryServer, real_home: Path
) -> None:
    name = f"{registry.host}/team/env:pull"
    project.write(packages("six"))
    report = project.build("-t", name, "--push")
    home = real_home.parent / f"{real_home.name}-pull"
    try:
        environ = {"DANLU_HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        danlu = Path(__import__("sys").executable).with_name("danlu")
        for words in (["pull", name], ["check"]):
            subprocess.run([str(danlu), "image", *words], env=environ, check=True, cwd="/")
        output = subprocess.run(
            [str(danlu), "image", "show", name, "--format", "json"],
            env=environ,
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
        ).stdout
    finally:
        remove_tree(home)
    assert report["image"]["config"] in output


def test_an_image_of_a_registry_is_a_base(project: Project, registry: RegistryServer) -> None:
    name = f"{registry.host}/team/base:1"
    project.write('install.apt_packages(["python3"])', 'run(["echo base > /base"])')
    project("build", "-t", name, "--push")
    project.write(
        'install.apt_packages(["file"])',
        packages("six"),
        'io.copy("/base", "/copied", image="' + name + '")',
        base=f'    base(image="{name}")\n',
    )
    assert project.run("cat", "/base", "/copied") == "base\nbase"
    assert project.run("python", "-c", "import six; print(six.__name__)") == "six"
    assert project.run("file", "--version").startswith("file-")
    assert "sha256:" in (project.directory / "danlu.lock").read_text()


LINES = (
    packages("numpy", "six"),
    'runtime.environ(env={"GREETING": "hello"})',
    'run(["echo made > /made", "rm /etc/issue"])',
)
PROGRAM = """
import os, numpy, six
print(int(numpy.arange(4).sum()), six.__name__, os.environ["GREETING"])
print(open("/made").read().strip(), os.path.exists("/etc/issue"))
"""
PRINTED = "6 six hello\nmade False"


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Docker and podman, each empty."""
    if reason := missing(request.param):
        pytest.skip(reason)
    with ENGINES[request.param]() as engine:
        yield engine


def test_an_engine_runs_a_pushed_image(
    project: Project, registry: RegistryServer, engine: Engine
) -> None:
    name = f"{registry.host}/team/env:run"
    entrypoint = f'config.entrypoint(args=["python", "-c", {PROGRAM!r}])'
    project.write(*LINES, entrypoint)
    project("build", "-t", name, "--push")
    engine.pull(name)
    assert engine.run(name) == PRINTED


def test_an_engine_runs_a_written_image(project: Project, engine: Engine) -> None:
    project.write(*LINES)
    archive = project.directory / "image.tar"
    project("build", "-t", "team/env:run", "-o", f"type=docker,dest={archive}")
    engine.load(archive)
    assert engine.run("docker.io/team/env:run", "python", "-c", PROGRAM) == PRINTED
