"""What the running model server needs, installed once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.servers import MODULES, ServerDirectory, install_packages


@pytest.fixture(scope="session")
def server_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a packed image's server, gRPC included."""
    place = tmp_path_factory.mktemp("server") / "packages"
    requirements = (MODULES / "requirements.txt", MODULES / "requirements-grpc.txt")
    return install_packages(place, requirements=requirements)


@pytest.fixture
def directory(server_packages: Path, tmp_path: Path) -> ServerDirectory:
    """A directory for a server with any predictor."""
    return ServerDirectory(server_packages, tmp_path / "predictor")


@pytest.fixture(scope="session")
def pandas_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """pandas, which danlu's environment doesn't have, after all else on the path."""
    place = str(install_packages(tmp_path_factory.mktemp("pandas"), "pandas"))
    sys.path.append(place)
    yield
    sys.path.remove(place)
