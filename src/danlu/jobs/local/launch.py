"""What programs of a job find around them beside what their pod says: files, mounts, reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from danlu.jobs.local.state import Place
from danlu.jobs.local.types import Engine, Volume
from danlu.training.framework import File
from danlu.training.types import ReplicaId
from danlu.util.files import write_atomic

__all__ = ["Helpers", "write_files"]

AGENT = "kubexec.sh"
"""The file that MPI starts its daemons by: ``kubectl exec`` on a cluster, our agent here."""


class Helpers(Protocol):
    """What the supervisor gives the replicas' programs."""

    def environment(self, replica: ReplicaId) -> Mapping[str, str]:
        """Variables below all that the job says itself."""

    def volumes(self, replica: ReplicaId) -> Mapping[str, Path]:
        """What of this machine stands for each volume of its pod."""

    def mounts(self, replica: ReplicaId) -> tuple[Volume, ...]:
        """What its containers find beside that."""

    def containers(self) -> Engine:
        """The engine of containers."""


def write_files(place: Place, files: Mapping[str, File], *, python: str) -> None:
    """Write the framework's files; where MPI's agent is among them it is ours."""
    for name, file in files.items():
        text = file.text
        if name == AGENT:
            text = _agent(place, python)
        mode = 0o755 if file.executable else 0o644
        write_atomic(place.files / name, text.encode(), mode=mode, sync=False)


def _agent(place: Place, python: str) -> str:
    """A script that runs a command in another replica, from a process or in a container.

    The agent itself lies beside it, and so does the supervisor's socket.
    """
    source = (Path(__file__).parent / "agent.py").read_bytes()
    write_atomic(place.files / "danlu-exec.py", source, sync=False)
    return (
        "#!/bin/sh\n"
        'here=$(dirname -- "$0")\n'
        f"for python in '{python}' python3 python; do\n"
        '    if command -v "$python" >/dev/null; then\n'
        '        exec "$python" -I -S "$here/danlu-exec.py" "$here/control.sock" "$@"\n'
        "    fi\n"
        "done\n"
        'echo "MPI workers are started with Python, which is not here" >&2\n'
        "exit 127\n"
    )
