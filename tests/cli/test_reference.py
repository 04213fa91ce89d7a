"""The generated reference of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_cli_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.reference.cli", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make docs`"
