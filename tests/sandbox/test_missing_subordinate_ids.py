"""An account without subordinate ids: errors come early and contain the line to add."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from danlu.errors import MachineError
from danlu.oci.tar import extract_layer
from danlu.sandbox import userns
from danlu.util.id_maps import account_name, suggest_usermod
from danlu.util.paths import Paths
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import account, run_inside

__all__ = ["home"]

T = TypeVar("T")

pytestmark = [pytest.mark.real, pytest.mark.needs("root"), pytest.mark.timeout(120)]


def run_alone(
    home: Path, act: Callable[[], T], *, enter: Callable[[Paths], None] = userns.enter
) -> T:
    """Run ``act`` as an ordinary user without subordinate ids; return its result."""
    return run_inside(act, home=home, ordinary=True, ids=False, enter=enter)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'def build():\n    base(os="debian12")\n',
            "base(os='debian12') needs subordinate user ids",
        ),
        (
            'def build():\n    base(image="debian:12")\n    install.apt_packages(name=["git"])\n',
            "installing system packages needs subordinate user ids",
        ),
    ],
)
def test_build_is_rejected_before_any_work(home: Path, text: str, message: str) -> None:
    project = home / "project"
    project.mkdir()
    (project / "build.envd").write_text(text)

    def act() -> tuple[int, str, list[str]]:
        result = subprocess.run(
            [sys.executable, "-m", "danlu.cli", "build"],
            cwd=project,
            env={**os.environ, "DANLU_HOME": str(home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stderr, [path.name for path in (home / "cache").glob("*")]

    code, output, cached = run_alone(home, act, enter=lambda paths: None)
    assert code == 4, output
    assert message in output
    assert f"hint: {suggest_usermod(account().pw_name)}" in output
    assert "apt" not in cached
    assert not (project / "danlu.lock").exists()


def test_layer_with_other_owners_is_rejected_with_the_line_to_add(home: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("etc/shadow")
        entry.gid = 42
        archive.addfile(entry)

    def act() -> tuple[str, str, str]:
        try:
            (home / "tree").mkdir()
            extract_layer(io.BytesIO(data.getvalue()), home / "tree")
        except MachineError as error:
            return error.message, error.hint, account_name()
        raise AssertionError("not refused")

    message, hint, name = run_alone(home, act)
    assert message.startswith("/etc/shadow belongs to 0:42")
    assert name == account().pw_name
    assert hint == suggest_usermod(name)
