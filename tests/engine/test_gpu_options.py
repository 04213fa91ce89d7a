"""Which GPUs an environment gets: the option, the build file, the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danlu.engine.gpu_options import decide_gpus
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import MachineError, UsageError
from danlu.util.config import Configuration
from tests.engine.gpu.driver_tree import make_driver


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """The configuration of a machine with two GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    make_driver(tmp_path / "driver", nodes=False)
    driver, specs = str(tmp_path / "driver"), str(tmp_path / "cdi")
    return Configuration(gpu_driver_root=driver, cdi_spec_dirs=specs)


@pytest.mark.parametrize(
    ("given", "declared", "expected", "warning"),
    [
        ("", None, "", ""),
        ("", 0, "", ""),
        ("", 2, "2", ""),
        ("", 3, "2", "config.gpu(3): this machine has 2; starting with 2"),
        ("none", 2, "", ""),
        ("all", 1, "all", ""),
        # Asked for by the user: an error when it starts, not a warning.
        ("7", None, "7", ""),
    ],
)
def test_option_wins_over_the_build_file(
    config: Configuration, given: str, declared: int | None, expected: str, warning: str
) -> None:
    output: list[Any] = []
    assert decide_gpus(given, RuntimeSettings(gpus=declared), config, output.append) == expected
    assert [message.text for message in output] == ([f"warning: {warning}"] if warning else [])


def test_batch_system_without_gpus_is_a_warning(
    config: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output: list[Any] = []
    assert decide_gpus("", RuntimeSettings(gpus=1), config, output.append) == ""
    assert "config.gpu(1): this machine has none" in output[0].text
    assert "running on the CPU" in output[0].text


def test_a_machine_without_gpus_is_named_before_anything_is_built(tmp_path: Path) -> None:
    config = Configuration(gpu_driver_root=str(tmp_path), cdi_spec_dirs=str(tmp_path))
    for given in ("1", "all", "0,1"):
        with pytest.raises(MachineError, match="no NVIDIA driver is loaded"):
            decide_gpus(given, RuntimeSettings(), config, lambda event: None)
    assert decide_gpus("none", RuntimeSettings(gpus=1), config, lambda event: None) == ""


def test_invalid_option_is_rejected(config: Configuration) -> None:
    with pytest.raises(UsageError, match="--gpus some"):
        decide_gpus("some", RuntimeSettings(), config, lambda event: None)
