from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    place = tmp_path / "notebook"
    place.mkdir()
    return place
