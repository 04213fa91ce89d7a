"""Commands of the documentation for clusters work as written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.page_runner import (
    CLUSTER,
    PAGES,
    REGISTRY,
    create_home,
    create_variables,
    page_name,
    read_page,
    run_page,
)
from tests.engine.kubernetes.clusters import cluster_variables
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import make_wheel

#: Commands that come before those of a page. A file for each page.
SETUPS = Path(__file__).with_name("pages")
NAMES = [
    page_name(page)
    for page in PAGES
    if any(block.needs == CLUSTER for block in read_page(page_name(page)))
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with danlu's wheel."""
    directory = tmp_path_factory.mktemp("danlu")
    make_wheel(directory, source=directory / "source")
    return directory


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("root", "kubectl", "ssh")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_works_as_written_on_a_cluster(
    name: str, cluster: RunningCluster, wheels: Path, real_home: Path, tmp_path: Path
) -> None:
    blocks = [
        replace(block, needs="")
        for block in read_page(name)
        if block.title or block.needs == CLUSTER
    ]
    setup = SETUPS / f"{Path(name).name}.sh"
    with create_home(real_home) as home:
        environ = create_variables(home, tmp_path) | cluster_variables(cluster)
        environ |= {"DANLU_CONTEXT": "local", "WHEELS": str(wheels)}
        run_page(blocks, setup, tmp_path / "project", environ, {REGISTRY: cluster.registry})
