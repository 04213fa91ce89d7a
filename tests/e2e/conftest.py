"""Projects for tests that run the real program."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Danlu

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
        """What a command prints in the environment."""
        return self("run", "--", *arguments).stdout.strip()

    def build(self, *arguments: str) -> dict[str, Any]:
        """The metadata of a build."""
        file = self.directory.parent / f"{self.directory.name}.metadata.json"
        self("build", "--metadata-file", str(file), *arguments)
        value: dict[str, Any] = json.loads(file.read_text())
        return value


@pytest.fixture
def project(tmp_path: Path, danlu: Danlu) -> Project:
    """An empty project."""
    directory = tmp_path / "project"
    directory.mkdir()
    return Project(directory, danlu)
