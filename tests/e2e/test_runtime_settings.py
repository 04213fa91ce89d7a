"""Runtime settings of a build file take effect in ``danlu run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.e2e.test_functions import repository

pytestmark = pytest.mark.real


@pytest.fixture
def built_project(project: Project) -> Project:
    """A project whose image exists: what follows starts environments only."""
    project.write()
    project("build")
    return project


def test_named_commands_mounts_init_and_shared_memory(
    built_project: Project, real_home: Path
) -> None:
    image = built_project.build()["image"]["config"]
    name = f"sets-{built_project.directory.parent.name}"
    (built_project.directory / "sets").mkdir()
    (built_project.directory / "sets/x").write_text("mounted\n")
    built_project.write(
        'runtime.command({"show": "cat /made/x /sets/x && printf \'%s\\n\'", "ls": "echo mine"})',
        'runtime.mount("sets", "/sets")',
        f'runtime.mount(data.envd("{name}"), "~/kept")',
        'runtime.init(["echo starting; mkdir /made", "cp /sets/x /made/x"])',
        "config.shm_size(48)",
        "config.gpu(1)",
        'runtime.daemon([["sleep", "600"]])',
        "runtime.expose(8080)",
    )
    result = built_project("run", "show", "a b", "*")
    assert result.stdout == "mounted\nmounted\na b\n*\n"
    assert "starting\n" in result.stderr, "the output of init is not the program's"
    assert "config.gpu(1): this machine has none" in result.stderr
    assert "does not apply runtime.daemon, runtime.expose; use `danlu up`" in result.stderr
    # The image is the one from before, and is found again without evaluating the build file.
    assert built_project.build()["image"]["config"] == image

    assert built_project("run", "ls").stdout == "mine\n"
    script = "ls /sets; echo kept > ~/kept/y; df -k /dev/shm | awk 'END { print $2 }'"
    assert built_project("run", "--", "sh", "-c", script).stdout == "x\n49152\n"
    assert built_project("run", "--", "ls", "/sets").stdout == "x\n", "-- names a program"
    kept = real_home / "data" / name
    assert (kept / "y").read_text() == "kept\n"
    assert (kept / "y").stat().st_uid == kept.stat().st_uid

    script = "ls -d /made; df -k /dev/shm | awk 'END { print $2 }'"
    options = ("--no-init", "--shm-size", "16MiB")
    result = built_project("run", *options, "--", "sh", "-c", script)
    assert result.stdout == "16384\n"
    assert "starting" not in result.stderr


def test_settings_that_change_alone_take_effect(built_project: Project) -> None:
    for text in ("one", "two"):
        built_project.write(f'runtime.command({{"say": "echo {text}"}})')
        assert built_project("run", "say").stdout == f"{text}\n"
        assert built_project("run", "say").stdout == f"{text}\n"


def test_failures_name_the_command_or_the_mount(built_project: Project) -> None:
    built_project.write('runtime.command({"train": "true"})', 'runtime.init(["exit 9"])')
    failed = built_project("run", "train", check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "error: runtime.init failed with exit code 9: exit 9\n" in failed.stderr
    failed = built_project("run", "--no-init", "tran", check=False)
    assert failed.returncode == 127
    assert "hint: did you mean 'train'?" in failed.stderr
    for arguments in (("--", "tran"), ("sh", "-c", "tran")):
        assert "hint" not in built_project("run", "--no-init", *arguments, check=False).stderr
    built_project.write('runtime.mount("missing", "/data")')
    failed = built_project("run", "--", "true", check=False)
    assert failed.returncode == 125
    assert "cannot mount missing at /data" in failed.stderr
    assert built_project(
        "run", "-v", f"{built_project.directory}:/data", "--", "ls", "/data"
    ).stdout


def test_a_python_build_file_has_settings_too(project: Project) -> None:
    (project.directory / "build.py").write_text(
        "from danlu import base, runtime\n"
        'def build():\n    base(os="debian12")\n    runtime.command({"say": "echo py"})\n'
    )
    assert project("run", "say", "yes").stdout == "py yes\n"
    assert project("run", "say", "yes").stdout == "py yes\n"


def test_an_included_repository_mounts_nothing_by_itself(project: Project, tmp_path: Path) -> None:
    library = tmp_path / "library"
    (tmp_path / "secret").write_text("hidden\n")
    text = f'def tools():\n    runtime.mount("{tmp_path}/secret", "/secret")\n'
    repository(library, {"lib.envd": text})
    project.write("lib.tools()", head=f'lib = include("{library}")\n')
    refused = project("run", "--", "cat", "/secret", check=False)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert f"lib.envd:2: {tmp_path}/secret at /secret" in refused.stderr
    assert "--allow-mounts" in refused.stderr
    assert project("run", "--allow-mounts", "--", "cat", "/secret").stdout == "hidden\n"
