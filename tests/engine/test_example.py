"""``examples/add-an-engine``: an engine of an external package, used as by its author."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "add-an-engine"


pytestmark = [pytest.mark.real, pytest.mark.needs("busybox", "unshare")]
SAMPLE = "chroot and (streams_and_exit_codes or stop_keeps_files or down_removes)"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_engine_of_an_external_package_passes_the_tests_of_engines() -> None:
    verify_example("-n", "2")


def test_engine_of_an_external_package_passes_a_sample_of_the_tests_of_engines() -> None:
    verify_example("-k", SAMPLE)


def verify_example(*options: str) -> None:
    program = Path(sys.executable).with_name("danlu")
    result = subprocess.run(
        [str(EXAMPLE / "verify"), *options],
        env={**os.environ, "DANLU": str(program)},
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("verify: done\n")
