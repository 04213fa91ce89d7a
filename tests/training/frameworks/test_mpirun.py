"""The MPI files and variables under a real ``mpirun``, with an agent other than kubectl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from danlu.training.frameworks.mpi import FRAMEWORK
from danlu.training.types import ReplicaId, ReplicaType
from tests.training.frameworks.topology import FakeTopology, job_of

LAUNCHER = ReplicaType("Launcher")
# Daemons that share a session directory remove each other's, so every host has its own.
AGENT = """#!/bin/sh
export HOST_OF_RANK="$1"
export TMPDIR="$TMPDIR/$1"
mkdir -p "$TMPDIR"
shift
exec sh -c "$*"
"""


class LocalTopology(FakeTopology):
    """A cluster whose files are in a local directory."""

    files = Path()

    def directory(self, replica: ReplicaId) -> str:
        return str(self.files)


@pytest.mark.real
@pytest.mark.needs("mpirun")
def test_mpirun_starts_a_rank_in_every_slot_through_the_agent(
    tmp_path: Path, mpi_directory: str
) -> None:
    job = job_of(FRAMEWORK, {"Launcher": 1, "Worker": 2}, options={"slotsPerWorker": 2})
    here = LocalTopology(job, FRAMEWORK)
    here.files = tmp_path
    for name, file in FRAMEWORK.files(job, here, []).items():
        (tmp_path / name).write_text(AGENT if name == "kubexec.sh" else file.text)
        (tmp_path / name).chmod(0o755 if file.executable else 0o644)
    variables = {
        name: str(value) for name, value in FRAMEWORK.build_env(job, ReplicaId(LAUNCHER, 0), here)
    }
    script = ("sh", "-c", "echo $HOST_OF_RANK $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE")
    result = subprocess.run(
        FRAMEWORK.wrap_command(job, LAUNCHER, script),
        env={**os.environ, **variables, "TMPDIR": mpi_directory},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "j-worker-0 0 of 4",
        "j-worker-0 1 of 4",
        "j-worker-1 2 of 4",
        "j-worker-1 3 of 4",
    ]
