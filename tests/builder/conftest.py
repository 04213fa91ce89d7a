from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.store import Store
from tests.builder.wheels import WheelBuilder


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelBuilder]:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    with Store.open(tmp_path / "home" / "store") as store:
        yield WheelBuilder(tmp_path, store)
