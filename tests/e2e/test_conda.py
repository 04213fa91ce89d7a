"""Environments with conda packages from a real channel: the installed programs run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import Project, start
from tests.fakes.conda import (
    PLACEHOLDER,
    CondaFile,
    index_channel,
    write_package,
)

pytestmark = pytest.mark.real
PREFIX = PLACEHOLDER.encode()


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel with a package of the kinds that need no interpreter."""
    channel = tmp_path / "channel"
    files = {
        "bin/hello": CondaFile(
            b"#!/bin/sh\ncat " + PREFIX + b"/share/word\n", 0o755, prefix="text"
        ),
        "share/word": CondaFile(b"elixir\n"),
    }
    write_package(channel, "hello", files=files, depends=["greeting"], noarch="generic")
    write_package(channel, "greeting", files={"share/greeting": CondaFile(b"good day\n")})
    index_channel(channel)
    return channel


def call(channel: Path, *names: str) -> str:
    return f"install.conda_packages({list(names)}, channel=['nodefaults', '{channel}'])"


def test_a_conda_package_and_its_dependencies_run_in_the_image(
    project: Project, channel: Path
) -> None:
    project.write(call(channel, "hello"))
    assert project.run("hello") == "elixir"
    assert project.run("cat", "/opt/conda/share/greeting") == "good day"
    assert project.run("sh", "-c", "ls $CONDA_PREFIX/conda-meta") == (
        "greeting-1.0-0.json\nhello-1.0-0.json"
    )
    # Only the new package is resolved, fetched and unpacked.
    write_package(channel, "extra", noarch="generic", files={"share/extra": CondaFile(b"1")})
    index_channel(channel)
    project.write(call(channel, "hello", "extra"))
    steps = project.build()["vertices"]
    assert [step["name"] for step in steps if not step["cached"]] == ["extra 1.0 (conda)"]


@pytest.mark.slow
def test_one_lock_gives_one_digest_and_a_warm_store_needs_no_channel(
    project: Project, channel: Path, tmp_path: Path
) -> None:
    project.write(call(channel, "hello"))
    first = project.build()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(channel, elsewhere)
    assert (
        project.build("--no-cache", "--offline", "--frozen")["image"]["config"]
        == first["image"]["config"]
    )


def test_a_package_that_changed_on_the_channel_is_refused(project: Project, channel: Path) -> None:
    # The download cache, which all tests share, must not have the package of the lock.
    unique = {"share/greeting": CondaFile(os.fsencode(channel))}
    write_package(channel, "greeting", files=unique)
    index_channel(channel)
    project.write(call(channel, "hello"))
    project("lock")
    write_package(channel, "greeting", files={"share/greeting": CondaFile(b"bad day\n")})
    failed = project("build", check=False)
    assert failed.returncode == 3
    assert "checksum mismatch" in failed.stderr
    assert "greeting-1.0-0.conda" in failed.stderr


def find_workers(parent: int) -> list[int]:
    """The processes that a build unpacks packages in."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"danlu.util.worker_pool" in command:
            results.append(int(entry.name))
    return results


def list_open_files(pid: int) -> list[Path]:
    """List the open files of a process, except those that it closes while they are read."""
    opened = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.append(entry.readlink())
    return opened


def test_a_build_interrupted_while_it_unpacks_leaves_nothing(
    project: Project, tmp_path: Path, real_home: Path
) -> None:
    channel = tmp_path / "large"
    content = CondaFile(random.Random(str(tmp_path)).randbytes(1 << 20))
    write_package(channel, "large", files={"share/large": content})
    index_channel(channel)
    project.write()
    project.build()
    project.write(call(channel, "large"))
    process = start(project, real_home, "build", "--progress", "plain")
    while not (workers := find_workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.005)
    # It cannot finish before the signal, and must be killed.
    os.kill(workers[0], signal.SIGSTOP)
    opened = list_open_files(process.pid)
    staged = [path for path in opened if path.parent == real_home / "store" / "tmp"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not Path(f"/proc/{workers[0]}").exists()
    assert staged
    assert not any(path.exists() for path in staged)
    assert project.run("wc", "-c", "/opt/conda/share/large").startswith("1048576 ")


def test_package_with_a_script_is_refused_by_name(project: Project, channel: Path) -> None:
    files = {"bin/.fonts-post-link.sh": CondaFile(b"touch /evil\n", 0o755)}
    write_package(channel, "fonts", files=files)
    index_channel(channel)
    project.write(call(channel, "fonts"))
    for command in (["build"], ["build"], ["run", "--", "true"]):
        failed = project(*command, check=False)
        assert failed.returncode == (2 if command == ["build"] else 125)
        assert "fonts 1.0 has a post-link script" in failed.stderr


#: The repackaged interpreter is linked with a library that conda's own contains.
EXPAT = 'install.apt_packages(["libexpat1"])'
WHERE = "import six, greet; print(six.__version__, six.__file__, greet.__file__)"


@pytest.mark.slow
def test_pip_packages_go_over_condas_python(project: Project, python_channel: Path) -> None:
    project.write(
        EXPAT,
        "install.conda()",
        'install.python("3.11")',
        call(python_channel, "greet"),
        'install.python_packages(["six==1.15.0", "via"])',
        'run(["greet > /greeting"])',
    )
    assert project.run("cat", "/greeting") == "1.16.0 /opt/conda"
    assert project.run("python", "-c", WHERE) == (
        "1.15.0 /opt/venv/lib/python3.11/site-packages/six.py"
        " /opt/conda/lib/python3.11/site-packages/greet.py"
    )
    # Programs of conda packages see what pip installed, too.
    assert project.run("/opt/conda/bin/python", "-c", "import via; print(via.__file__)").startswith(
        "/opt/venv/"
    )
    assert "/opt/conda/lib/python3.11" in project.run("pip", "--version")
    assert 'provider = "conda"' in (project.directory / "danlu.lock").read_text()


@pytest.mark.slow
def test_an_environment_file_with_a_pip_section(project: Project, python_channel: Path) -> None:
    (project.directory / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='mine', version='1', py_modules=['mine'])\n"
    )
    (project.directory / "mine.py").write_text("import greet\n")
    text = (
        f"name: ignored\nchannels: [nodefaults, '{python_channel}']\n"
        "dependencies:\n  - greet\n  - python=3.11\n  - pip:\n    - via\n    - -e .\n"
    )
    (project.directory / "env.yaml").write_text(text)
    project.write(EXPAT, "install.conda()", 'install.conda_packages(env_file="env.yaml")')
    assert project.run("python", "-c", "import mine, via; print(via.__name__)") == "via"
    (project.directory / "env.yaml").write_text(text.replace("python=3.11", "python=3.12"))
    failed = project("build", "--frozen", check=False)
    assert failed.returncode == 2
    assert "conda packages" in failed.stderr
    failed = project("build", check=False)
    assert failed.returncode == 2
    assert "conda package python 3.12.* not found for linux-64" in failed.stderr


def test_many_packages_become_few_layers_and_the_later_keeps_a_path(
    project: Project, tmp_path: Path
) -> None:
    channel = tmp_path / "many"
    names = [f"p{number:03}" for number in range(110)]
    for name in names:
        files = {
            f"share/{name}": CondaFile(name.encode()),
            "share/LICENSE": CondaFile(name.encode()),
        }
        write_package(channel, name, files=files, noarch="generic")
    index_channel(channel)
    project.write(call(channel, *names))
    layers = project.build()["image"]["layers"]
    assert len(layers) < 60
    assert project.run("sh", "-c", "ls /opt/conda/share | wc -l; cat /opt/conda/share/LICENSE") == (
        "111\np109"
    )


def test_pixi_is_installed_and_configured(project: Project, tmp_path: Path) -> None:
    channel = tmp_path / "pixi"
    files = {"bin/pixi": CondaFile(b"#!/bin/sh\necho pixi 0.62\n", 0o755)}
    write_package(channel, "pixi", "0.62", files=files)
    index_channel(channel)
    project.write(
        f"config.conda_channel(\"channels: ['{channel}']\")",
        'install.pixi(use_pixi_mirror=True, pypi_index="https://user:secret@x.example/simple")',
        'install.python("3.11")',
    )
    assert project.run("pixi") == "pixi 0.62"
    config = project.run("cat", "/etc/pixi/config.toml")
    assert 'index-url = "https://x.example/simple"' in config
    assert "https://prefix.dev/" in config
    assert project.run("readlink", "-f", "/opt/venv/bin/python") == "/usr/bin/python3.11"
    assert str(channel) in project.run("cat", "/opt/conda/.condarc")
