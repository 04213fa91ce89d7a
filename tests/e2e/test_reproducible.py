"""One lock gives one digest for every user, place and time: the benchmark's, and a step."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.workload import BuildWorkload, build_envd
from tests.conftest import remove_tree
from tests.e2e.standalone import add_build

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STEPS = """\
    runtime.environ(env={"A": "1"})
    install.cuda("12.4.1", cudnn="", flavor="base")
    io.copy("data", "/data")
    run(["python -c 'import torch; print(torch.arange(3))' > /out", "mkdir -p /a/b; touch /a/b/c"])
"""

BENCHMARK = build_envd(BuildWorkload()) + STEPS
SMALL = """\
def build():
    base(os="debian12")
    install.apt_packages(["file"])
    install.python_packages(name=["markupsafe", "six"])
    io.copy("data", "/data")
    run(["python -c 'import markupsafe; print(markupsafe)' > /out", "mkdir -p /a/b; touch /a/b/c"])
"""

PYTHONS = (sys.executable, "/usr/bin/python3")

Identity = tuple[object, list[object]]


@dataclass(frozen=True)
class ReferenceBuild:
    """A project with its lock, the home it was built in first, and the image that gave."""

    project: Path
    home: Path
    identity: Identity


@pytest.fixture(scope="module")
def homes() -> Iterator[Path]:
    """A directory on disk (not memory) for stores that are used once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "danlu-tests" / f"homes-{os.getpid()}"
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    yield directory
    remove_tree(directory)


@pytest.fixture(scope="module")
def reference(homes: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceBuild:
    """Built with an empty store, nothing downloaded, and no lock."""
    project = tmp_path_factory.mktemp("reference")
    make_project(project)
    home = homes / "reference"
    return ReferenceBuild(project, home, build(project, home, environ={"TZ": "UTC"}))


def make_project(directory: Path, lock: Path | None = None, text: str = BENCHMARK) -> None:
    (directory / "data/sub").mkdir(parents=True)
    (directory / "data/a.txt").write_text("a")
    (directory / "data/sub/tool").write_text("#!/bin/sh\n")
    (directory / "data/sub/tool").chmod(0o755)
    (directory / "build.envd").write_text(text)
    if lock is not None:
        shutil.copyfile(lock / "danlu.lock", directory / "danlu.lock")


def build(
    directory: Path,
    home: Path,
    *before: str,
    options: tuple[str, ...] = (),
    environ: dict[str, str],
    python: str = sys.executable,
) -> Identity:
    """The identity of the image, and of each of its layers."""
    report = directory / "report.json"
    command = [*before, python, "-m", "danlu", "build", *options, "--metadata-file", str(report)]
    variables = {**os.environ, "DANLU_HOME": str(home), **environ}
    result = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    image = json.loads(report.read_text())["image"]
    return image["config"], [(layer["diff_id"], layer["created_by"]) for layer in image["layers"]]


def seed(source: Path, home: Path) -> None:
    """Give a new home hard links to the downloads of another, which are never modified."""
    home.mkdir()
    subprocess.run(["cp", "-al", str(source / "cache"), str(home / "cache")], check=True)


def forget_half(home: Path) -> None:
    """Remove every second download, so that some come from the cache and some are fetched."""
    debs = sorted(home.glob("cache/apt/debs/*.deb"))
    wheels = sorted(path for path in home.glob("cache/uv/wheels-v*/**/*") if path.is_symlink())
    assert min(len(debs), len(wheels)) > 20
    for deb in debs[::2]:
        deb.unlink()
    for wheel in wheels[::2]:
        for end in ("", ".http", ".rev"):
            wheel.with_name(wheel.name + end).unlink(missing_ok=True)


def import_environment() -> dict[str, str]:
    """Return the environment in which another interpreter finds danlu, its dependencies and uv."""
    from sysconfig import get_path

    import danlu

    source = str(Path(danlu.__file__).parent.parent)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PYTHONPATH": f"{source}:{get_path('purelib')}", "PATH": path}


def runs(become: list[str], python: str, environ: dict[str, str]) -> bool:
    # uv looks for the interpreter's real place, which others may not see.
    code = "import os, sys, msgspec, starlark, danlu; os.path.realpath(sys.executable, strict=True)"
    command = [*become, python, "-c", code]
    variables = {**os.environ, **environ}
    try:
        result = subprocess.run(command, env=variables, capture_output=True, cwd="/", check=False)
    except OSError:
        return False
    return result.returncode == 0


@pytest.mark.slow
def test_another_directory_machine_and_order_of_downloads(
    reference: ReferenceBuild, homes: Path, tmp_path: Path
) -> None:
    project, home = tmp_path / "deeper/down/two", homes / "other"
    make_project(project, reference.project)
    seed(reference.home, home)
    forget_half(home)
    changed = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    one_at_a_time = {"UV_CONCURRENT_DOWNLOADS": "1"}
    machine = ["unshare", "--uts", "sh", "-c", 'hostname other; exec "$@"', "sh"]
    before = [*(machine if os.geteuid() == 0 else []), "sh", "-c", 'umask 077; exec "$@"', "sh"]
    identity = build(project, home, *before, options=("--frozen",), environ=changed | one_at_a_time)
    assert identity == reference.identity


@pytest.mark.slow
@pytest.mark.needs("faketime")
def test_another_clock(reference: ReferenceBuild, homes: Path, tmp_path: Path) -> None:
    project, home = tmp_path / "project", homes / "clock"
    make_project(project, reference.project)
    seed(reference.home, home)
    # Before the locked packages were made. Offline, since certificates are not valid then.
    options = ("--frozen", "--offline")
    identity = build(project, home, "faketime", "-f", "-400d", options=options, environ={})
    assert identity == reference.identity


@pytest.mark.slow
@pytest.mark.needs("root")
def test_an_ordinary_user(reference: ReferenceBuild) -> None:
    assert build_as_ordinary_user(reference.project, BENCHMARK) == reference.identity


@pytest.mark.needs("root")
def test_an_ordinary_user_builds_a_small_image(real_home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project, text=SMALL)
    identity = build(project, real_home, environ={})
    assert build_as_ordinary_user(project, SMALL) == identity


def build_as_ordinary_user(project: Path, text: str) -> Identity:
    """Return what an account with an empty home builds from the lock of ``project``."""
    user = "danlu-reproducible"
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        subprocess.run(["useradd", "--create-home", user], check=True)
        account = pwd.getpwnam(user)
    other = Path(account.pw_dir) / f"project-{os.getpid()}"
    home = Path(account.pw_dir) / f"danlu-{os.getpid()}"
    become = ["setpriv", f"--reuid={user}", f"--regid={account.pw_gid}", "--init-groups"]
    environ = {"HOME": account.pw_dir, "USER": user, "LOGNAME": user, **import_environment()}
    python = next(
        (interpreter for interpreter in PYTHONS if runs(become, interpreter, environ)), None
    )
    if python is None:
        pytest.skip("no Python here that others may run can import danlu")
    make_project(other, project, text)
    subprocess.run(["chown", "-R", f"{user}:", str(other)], check=True)
    try:
        return build(other, home, *become, options=("--frozen",), environ=environ, python=python)
    finally:
        shutil.rmtree(other, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)


#: Two environments with one lock: conda's Python, and another than the distribution's.
LANGUAGES = """\
def build():
    base(os="debian13")
    install.apt_packages(["libexpat1"])
    install.conda()
    install.python("3.11")
    install.conda_packages(["greet"], channel=["nodefaults", "{channel}"])
    install.python_packages(["six==1.15.0"])
    install.r_lang()
    install.nodejs("24.11")
    run(["greet > /greeting"])


def other():
    base(os="debian13")
    install.python("{minor}")
    install.python_packages(["markupsafe"])
    install.r_lang()
    install.nodejs("24.11")
    run(["python -c 'import markupsafe._speedups'"])
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_conda_another_python_r_and_node_give_one_digest_from_two_empty_stores(
    homes: Path,
    tmp_path: Path,
    python_channel: Path,
    own_channels: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = tmp_path / "mirror"
    monkeypatch.setenv("DANLU_MIRROR_PYTHON", str(mirror))
    add_build(mirror)
    channel = tmp_path / "channel"
    shutil.copytree(python_channel, channel)
    first, second = tmp_path / "first", tmp_path / "second/below"
    first.mkdir()
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    (first / "build.envd").write_text(LANGUAGES.format(channel=channel, minor=minor))
    functions = ("build", "other")

    def build_both(
        project: Path, home: str, *options: str, before: tuple[str, ...] = ()
    ) -> list[Identity]:
        files = [("-f", f"build.envd:{name}", *options) for name in functions]
        return [build(project, homes / home, *before, options=file, environ={}) for file in files]

    identities = build_both(first, "languages")
    second.parent.mkdir()
    shutil.copytree(first, second)
    assert build_both(second, "languages-again", "--frozen") == identities
    # A warm store needs neither the channel nor the mirror, and no network.
    shutil.rmtree(mirror)
    shutil.rmtree(channel)
    alone = ("unshare", "--net") if os.geteuid() == 0 else ()
    assert build_both(second, "languages-again", "--frozen", before=alone) == identities
    for options in (("--frozen", "--offline"), ("--frozen", "--offline", "--no-cache")):
        assert build_both(second, "languages-again", *options, before=alone) == identities
