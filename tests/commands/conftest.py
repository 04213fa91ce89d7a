"""Settings with an empty home."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.settings import Settings
from danlu.util.config import Configuration
from danlu.util.paths import Paths


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())
