from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.store import Store
from tests.conftest import Danlu, program_in
from tests.jobs.containers.engine_rig import image, paths_of
from tests.operator.cluster.conftest import cluster
from tests.sandbox.conftest import home, run_in_namespace

__all__ = ["cluster", "home", "run_in_namespace"]


@pytest.fixture
def box_home(tmp_path: Path) -> Path:
    """A home whose store has the image ``box:1``."""
    home = tmp_path / "home"
    digest = image(home)
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", digest)
    return home


@pytest.fixture
def danlu(box_home: Path) -> Iterator[Danlu]:
    """The program in that home; environments that a test leaves are removed."""
    run = program_in(box_home)
    yield run
    for name in run("ps", "-q", cwd=box_home).stdout.split():
        run("down", "--grace", "0", name, cwd=box_home)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The empty directory of a project."""
    directory = tmp_path / "digits"
    directory.mkdir()
    return directory
