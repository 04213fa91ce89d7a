"""Two real commands on one project and one store at the same moment: both end right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Project, finish, start

pytestmark = [pytest.mark.real]

FUNCTIONS = """\
def build():
    base(os="debian12")
    install.python_packages(name=["six"])

def test():
    base(os="debian12")
    install.python_packages(name=["tqdm"])
"""


@pytest.mark.slow
def test_updates_of_one_lock_are_all_kept(project: Project, real_home: Path) -> None:
    (project.directory / "build.envd").write_text(FUNCTIONS)
    commands = (
        ("lock", "-f", "build.envd:test"),
        ("build",),
        ("add", "attrs"),
        ("add", "-f", "build.envd:test", "idna"),
    )
    for process in [start(project, real_home, *words) for words in commands]:
        finish(process)
    text = (project.directory / "danlu.lock").read_text()
    sections = re.split(r"^\[function\.(\w+)\]$", text, flags=re.M)
    assert sections[1::2] == ["build", "test"]
    assert ["attrs" in sections[2], "idna" in sections[4]] == [True, True]
    project("lock", "--check")
    project("lock", "--check", "-f", "build.envd:test")
