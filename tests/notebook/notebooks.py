"""Run notebooks headless and read their outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["TENSORFLOW", "TORCH", "NotebookRunner", "notebook_of", "read_stdout"]

#: What the environments of these names hold.
TORCH = ("danlu[notebook]", "torch", "scikit-learn", "matplotlib", "papermill", "kubeflow==0.5.0")
TENSORFLOW = ("danlu[notebook]", "tensorflow-cpu", "scikit-learn")

#: Seconds that a cell may take.
LIMIT = 300


@dataclass(frozen=True)
class NotebookRunner:
    """Runs notebooks in ``directory``, with a Python for their kernels and a danlu ``home``."""

    directory: Path
    python: Path
    home: Path

    def environment(self) -> dict[str, str]:
        """The variables of kernels, and of programs that start them."""
        mine = {
            "DANLU_HOME": str(self.home),
            "JUPYTER_PATH": str(self._write_kernelspecs()),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        }
        return {**os.environ, **mine}

    def run(self, notebook: Any) -> Any:
        """The notebook with its outputs; raises :class:`nbclient.exceptions.CellExecutionError`."""
        import nbclient

        resources = {"metadata": {"path": str(self.directory)}}
        client = nbclient.NotebookClient(notebook, timeout=LIMIT, resources=resources)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_PATH", str(self._write_kernelspecs()))
            client.execute(env=self.environment())
        return notebook

    def _write_kernelspecs(self) -> Path:
        """Return a directory for ``JUPYTER_PATH`` with kernels of this Python."""
        directory = self.home / "jupyter"
        for name, module in (("python3", "ipykernel_launcher"), ("danlu", "danlu.notebook.kernel")):
            spec = directory / "kernels" / name / "kernel.json"
            spec.parent.mkdir(parents=True, exist_ok=True)
            argv = [str(self.python), "-m", module, "-f", "{connection_file}"]
            output = {"argv": argv, "display_name": name, "language": "python"}
            spec.write_text(json.dumps(output))
        return directory


def notebook_of(cells: Sequence[str], *, kernel: str = "python3") -> Any:
    """A notebook of code cells."""
    from nbformat import from_dict

    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    code: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    output = [{**code, "id": f"cell-{number}", "source": cell} for number, cell in enumerate(cells)]
    metadata = {"kernelspec": spec}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": output}
    return from_dict(notebook)  # type: ignore[no-untyped-call]


def read_stdout(cell: Any) -> str:
    """Return what a cell wrote to stdout."""
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
