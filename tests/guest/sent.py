"""Cells that are sent and run for real, each in a process of its own, for tests."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.errors import UsageError
from danlu.jobs.types import JobView, Result
from danlu.notebook.bundle import Bundle, make
from danlu.notebook.types import Cell, CellOrder
from danlu.notebook.values import Limits
from danlu.training.types import JobStatus


class Variables:
    """The variables of a notebook that is a mapping."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        if name not in self._values:
            raise UsageError(f"there is no variable {name}")
        return self._values[name]

    def put(self, values: Mapping[str, Any]) -> None:
        raise AssertionError("nothing is set here")


@dataclass
class Ran:
    """How a cell ended: what it printed, and the bytes of what it returned and raised."""

    code: int
    out: str
    err: str
    value: bytes | None
    raised: dict[str, Any] = field(default_factory=dict)

    def result(self, replica: str = "worker-0") -> Result:
        """As the jobs protocol gives it."""
        view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus())
        values = {} if self.value is None else {replica: self.value}
        return Result(view, self.value, values)


def sent(
    place: Path,
    code: str,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    path: Sequence[str] | None = None,
    target: str = "sent",
    **order: Any,
) -> Bundle:
    """The bundle of a cell of the notebook's directory ``place``; all of ``variables`` are sent."""
    known = dict(variables or {})
    cell = Cell(CellOrder(send=tuple(known), **order), code)
    return make(
        cell,
        Variables(known),
        target=place.with_name(target),
        place=place,
        path=[*sys.path, ""] if path is None else path,
        limits=limits,
    )


def run(
    bundle: Bundle,
    *words: str,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    name: str = "run.py",
) -> Ran:
    """Run a cell as a replica does that is asked for values."""
    results = bundle.directory.with_name(f"{bundle.directory.name}-results")
    results.mkdir(exist_ok=True)
    value, raised = results / "value", results / "raised"
    told = {"DANLU_VALUE_FILE": str(value), "DANLU_RAISED_FILE": str(raised)}
    done = subprocess.run(
        [python, str(bundle.directory / name), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, **told, **(environ or {})},
        cwd=results,
    )
    return Ran(
        done.returncode,
        done.stdout,
        done.stderr,
        value.read_bytes() if value.exists() else None,
        pickle.loads(raised.read_bytes()) if raised.exists() else {},
    )
