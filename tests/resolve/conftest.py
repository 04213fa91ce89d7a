"""Fixtures of the resolution tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.resolve.resolver import PythonResolver


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of pip or uv but a test's own."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")


@pytest.fixture
def resolver(tmp_path: Path, own_settings: None) -> PythonResolver:
    """A resolver with a directory of wheels and a project."""
    return PythonResolver(tmp_path)
