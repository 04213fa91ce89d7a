"""The example of an unmodified Hugging Face Trainer, as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "huggingface-trainer"


@pytest.mark.training
@pytest.mark.timeout(1800)
def test_an_unmodified_trainer_shows_bar_estimate_and_loss(real_home: Path, tmp_path: Path) -> None:
    example = tmp_path / "huggingface-trainer"
    shutil.copytree(EXAMPLE, example)
    environment = {
        **os.environ,
        "DANLU": str(Path(sys.executable).with_name("danlu")),
        "DANLU_HOME": str(real_home),
    }
    result = subprocess.run(
        [str(example / "verify")], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-4000:]}{result.stderr[-2000:]}"
