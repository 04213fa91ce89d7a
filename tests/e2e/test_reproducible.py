"""One lock gives one digest, whoever builds it, where and when."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import remove_tree

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BUILD = """
def build():
    base(os="debian12")
    install.apt_packages(["git", "fontconfig"])
    install.python(version="3.11")
    install.python_packages(name=["numpy", "pandas", "tqdm"])
    runtime.environ(env={"A": "1"})
    io.copy("data", "/data")
    run(["python -c 'import numpy; print(numpy.arange(3))' > /out", "mkdir -p /a/b; touch /a/b/c"])
"""


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Path]:
    """A directory on disk (not memory) for stores that are used once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "danlu-tests" / f"homes-{os.getpid()}"
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    yield directory
    remove_tree(directory)


def make_project(directory: Path) -> None:
    (directory / "data/sub").mkdir(parents=True)
    (directory / "data/a.txt").write_text("a")
    (directory / "data/sub/tool").write_text("#!/bin/sh\n")
    (directory / "data/sub/tool").chmod(0o755)
    (directory / "build.envd").write_text(BUILD)


def build(
    directory: Path,
    home: Path,
    *before: str,
    environ: dict[str, str],
    python: str = sys.executable,
) -> dict[str, object]:
    """The image as its metadata tells it."""
    report = directory / "report.json"
    command = [*before, python, "-m", "danlu", "build", "--metadata-file", str(report)]
    variables = {**os.environ, "DANLU_HOME": str(home), **environ}
    done = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    image: dict[str, object] = json.loads(report.read_text())["image"]
    return image


PYTHONS = (sys.executable, "/usr/bin/python3")


def importable() -> dict[str, str]:
    """What makes another interpreter find danlu, what it stands on, and uv."""
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
        done = subprocess.run(command, env=variables, capture_output=True, cwd="/", check=False)
    except OSError:
        return False
    return done.returncode == 0


def identity(image: dict[str, object]) -> tuple[object, list[object]]:
    layers = image["layers"]
    assert isinstance(layers, list)
    return image["config"], [(one["diff_id"], one["created_by"]) for one in layers]


def test_two_empty_stores_give_one_digest(tmp_path: Path, homes: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "deeper/down/two"
    make_project(first)
    make_project(second)
    one = build(first, homes / "one", environ={"TZ": "UTC"})
    shutil.copyfile(first / "danlu.lock", second / "danlu.lock")
    changed = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    other_machine = ["unshare", "--uts", "sh", "-c", 'hostname other; umask 077; exec "$@"', "sh"]
    before = other_machine if os.geteuid() == 0 else []
    two = build(second, homes / "two", *before, environ=changed)
    assert identity(two) == identity(one)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to build as somebody else too")
def test_root_and_an_ordinary_user_give_one_digest(tmp_path: Path, homes: Path) -> None:
    user = "danlu-reproducible"
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        subprocess.run(["useradd", "--create-home", user], check=True)
        account = pwd.getpwnam(user)
    theirs = Path(account.pw_dir) / f"project-{os.getpid()}"
    home = Path(account.pw_dir) / f"danlu-{os.getpid()}"
    become = ["setpriv", f"--reuid={user}", f"--regid={account.pw_gid}", "--init-groups"]
    environ = {"HOME": account.pw_dir, "USER": user, "LOGNAME": user, **importable()}
    python = next((one for one in PYTHONS if runs(become, one, environ)), None)
    if python is None:
        pytest.skip("no Python here that others may run can import danlu")
    ours = tmp_path / "ours"
    make_project(ours)
    one = build(ours, homes / "root", environ={})
    make_project(theirs)
    shutil.copyfile(ours / "danlu.lock", theirs / "danlu.lock")
    subprocess.run(["chown", "-R", f"{user}:", str(theirs)], check=True)
    try:
        two = build(theirs, home, *become, environ=environ, python=python)
    finally:
        shutil.rmtree(theirs, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
    assert identity(two) == identity(one)
