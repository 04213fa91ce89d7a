"""Pruned layers are built again, from sources that are fetched again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.sources import downloads
from tests.conftest import program_in, remove_tree
from tests.e2e.conftest import Project

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture
def own_home(real_home: Path) -> Iterator[Path]:
    home = real_home.parent / f"{real_home.name}-prune"
    yield home
    remove_tree(home)


def test_pruned_layers_are_fetched_and_built_again(tmp_path: Path, own_home: Path) -> None:
    project = Project(tmp_path, program_in(own_home))
    project.write('install.python_packages(name=["six"])', 'run(["echo made > /made"])')
    first = project.build()
    pruned = json.loads(project("image", "prune", "--all", "--format", "json").stdout)
    assert pruned["images"] == 1
    assert pruned["layers"] == len(first["image"]["layers"])
    assert pruned["downloads"] > 50
    assert pruned["kept"] == downloads.cache_size(own_home / "cache") == 0
    again = project.build("--frozen")
    assert again["image"]["config"] == first["image"]["config"]
    project("image", "check")
