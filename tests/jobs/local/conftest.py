"""A danlu home for jobs, in which nothing is left running."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.util.locks import lock_is_held
from tests.jobs.local.support import local_jobs, supervisors_of, until


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A danlu home; what still runs in it at the end is ended."""
    home = tmp_path / "home"
    yield home
    for place in (home / "jobs").glob("*"):
        for process in supervisors_of(home, place.name):
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(process, signal.SIGKILL)
        anyio.run(until, lambda place=place: not lock_is_held(place / "supervisor.lock"))


@pytest.fixture
def jobs(home: Path) -> LocalJobs:
    return local_jobs(home)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The directory that programs run in."""
    directory = tmp_path / "work"
    directory.mkdir()
    return directory
