"""``examples/add-a-framework``: a framework of an external package, used as by its author."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "add-a-framework"


@pytest.mark.real
def test_framework_of_an_external_package_runs() -> None:
    program = Path(sys.executable).with_name("danlu")
    result = subprocess.run(
        [str(EXAMPLE / "verify")],
        env={**os.environ, "DANLU": str(program)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("verify: done\n")
