"""An image for other processors than this machine's is refused before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from danlu.sandbox.processor import find_machine_level
from tests.e2e.conftest import Project
from tests.fakes.wheels import make_level_wheels

pytestmark = [pytest.mark.real, pytest.mark.needs("root", "unshare")]

BASE = '    base(os="debian12"{})\n'
MESSAGE = "needs a processor of level x86-64-v3, and this machine's lacks avx, avx2, bmi1, bmi2, …"


def danlu_on_an_old_processor(
    project: Project, home: Path, cpuinfo: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the program where ``/proc/cpuinfo`` is that of a processor of level 2."""
    script = 'mount --bind "$1" /proc/cpuinfo; shift; exec "$@"'
    program = str(Path(sys.executable).with_name("danlu"))
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(cpuinfo), program, *arguments],
        cwd=project.directory,
        env={**os.environ, "DANLU_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_programs_of_another_level_do_not_start(
    project: Project, real_home: Path, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\n")
    install = 'install.python(version="3.11")'
    project.write(install, base=BASE.format(""))
    project("lock")
    before = tomllib.loads((project.directory / "danlu.lock").read_text())["function"]["build"]
    project.write(install, base=BASE.format(', variant="x86-64-v3"'))
    assert project("lock", "--check", check=False).returncode == 1
    project("lock")
    after = tomllib.loads((project.directory / "danlu.lock").read_text())["function"]["build"]
    assert after["base"]["variant"] == "x86-64-v3"
    assert after["base"]["packages"] == before["base"]["packages"]
    project("build", "-t", "leveled:1")
    (project.directory / "train.py").write_text("print('trained')\n")
    for command, program in [
        (("run", "--", "python", "-V"), "python"),
        (("run", "--image", "leveled:1", "--", "python", "-V"), "python"),
        (("up", "--name", "leveled", "--detach"), "image leveled:1"),
        (("train", "train.py", "--framework", "pytorch"), "image leveled:1"),
    ]:
        result = danlu_on_an_old_processor(project, real_home, cpuinfo, *command)
        assert result.returncode == (125 if command[0] == "run" else 4), result.stderr
        assert f"error: {program} {MESSAGE}" in result.stderr
        assert "`variant` in base()" in result.stderr


def test_wheels_for_the_level_are_installed(
    project: Project, http_directory: tuple[str, Path]
) -> None:
    if find_machine_level() not in ("x86-64-v3", "x86-64-v4"):
        pytest.skip("this machine's processor has a lower level")
    address, directory = http_directory
    make_level_wheels(directory / "simple/fast", "fast", {"v2": "v2", "v3": "v3", "v4": "v4"})
    lines = (
        'install.python(version="3.11")',
        f'config.pip_index(url="{address}/simple")',
        'install.python_packages(name=["fast"])',
    )
    show = ("python", "-c", "import fast; print(fast.LEVEL or 'all')")
    project.write(*lines, base=BASE.format(', variant="x86-64-v3"'))
    assert project.run(*show) == "v3"
    lock = (project.directory / "danlu.lock").read_text()
    assert "fast-1.0-py3-none-any-v3.whl" in lock
    refused = project("lock", "--export", "pylock.toml", check=False)
    assert refused.returncode == 2
    assert "fast-1.0-py3-none-any-v3.whl: it is for x86-64-v3 processors" in refused.stderr
    project.write(*lines)
    assert project.run(*show) == "all"
    project("lock", "--export", "pylock.toml")
