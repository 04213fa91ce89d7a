"""The generated reference of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_cli_reference_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "scripts.reference.cli", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr}run `make docs`"
