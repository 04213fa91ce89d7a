"""``examples/add-an-engine``: an engine of an external package, used as by its author."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "add-an-engine"


@pytest.mark.real
@pytest.mark.timeout(1500)
@pytest.mark.needs("busybox", "unshare")
def test_engine_of_an_external_package_passes_the_tests_of_engines() -> None:
    program = Path(sys.executable).with_name("danlu")
    result = subprocess.run(
        [str(EXAMPLE / "verify"), "-n", "2"],
        env={**os.environ, "DANLU": str(program)},
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("verify: done\n")
