"""Helpers that write the bundle of a cell and run it in a process, as a replica does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.jobs.types import JobResult, JobView
from danlu.notebook.bundle import CellBundle, write_bundle
from danlu.notebook.types import Cell, CellOptions
from danlu.notebook.variables import UserNamespace
from danlu.replica_runtime import encoding
from danlu.training.types import JobStatus
from danlu.util.config import TRANSFER_LIMIT


@dataclass
class CellResult:
    """The outcome of a cell: its output, results and exception, and whether it is trusted."""

    code: int
    out: str
    err: str
    value: bytes | None
    raised: dict[str, Any] = field(default_factory=dict)
    trusted: bool = False

    def result(self, replica: str = "worker-0") -> JobResult:
        """Return the result as a job backend does."""
        view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus())
        values = {} if self.value is None else {replica: self.value}
        return JobResult(view, self.value, values, trusted=self.trusted)


def write_cell_bundle(
    place: Path,
    code: str,
    *,
    variables: Mapping[str, Any] | None = None,
    limit: int = TRANSFER_LIMIT,
    path: Sequence[str] | None = None,
    target: str = "sent",
    **order: Any,
) -> CellBundle:
    """Write the bundle of a cell in the notebook's directory ``place``, with all ``variables``."""
    known = dict(variables or {})
    cell = Cell(CellOptions(send=tuple(known), **order), code)
    return write_bundle(
        cell,
        UserNamespace(known),
        target=place.with_name(target),
        place=place,
        path=[*sys.path, ""] if path is None else path,
        limit=limit,
    )


def run(
    bundle: CellBundle,
    *words: str,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    name: str = "run.py",
    trusted: bool = False,
) -> CellResult:
    """Run a cell as a replica whose values are requested."""
    results = bundle.directory.with_name(f"{bundle.directory.name}-results")
    results.mkdir(exist_ok=True)
    value, raised = results / "value", results / "raised"
    output = {"DANLU_VALUE_FILE": str(value), "DANLU_RAISED_FILE": str(raised)}
    if trusted:
        output["DANLU_RESULT_FORM"] = "pickle"
    result = subprocess.run(
        [python, str(bundle.directory / name), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **output, **(environ or {})},
        cwd=results,
    )
    return CellResult(
        result.returncode,
        result.stdout,
        result.stderr,
        value.read_bytes() if value.exists() else None,
        encoding.decode(raised.read_bytes()) if raised.exists() else {},
        trusted,
    )
