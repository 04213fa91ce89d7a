from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    directory = tmp_path / "notebook"
    directory.mkdir()
    return directory
