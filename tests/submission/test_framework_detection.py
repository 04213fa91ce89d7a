"""The framework of a script is detected from its imports, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.submission.framework_detection import DetectedFramework, detect_framework


def script(directory: Path, text: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "framework", "module"),
    [
        ("import torch.nn as nn\n", "pytorch", "torch"),
        ("from tensorflow import keras\n", "tensorflow", "tensorflow"),
        ("def main():\n    import jax\n", "jax", "jax"),
        ("import xgboost, numpy\n", "xgboost", "xgboost"),
        ("import paddle\n", "paddle", "paddle"),
        ("import mxnet as mx\n", "mxnet", "mxnet"),
        ("from transformers import Trainer\n", "pytorch", "transformers"),
        ("import torch\nimport accelerate\n", "pytorch", "torch"),
        ("import torch\nfrom mpi4py import MPI\n", "mpi", "mpi4py"),
        ("import horovod.tensorflow as hvd\nimport tensorflow\n", "mpi", "horovod"),
    ],
)
def test_framework_is_detected_from_an_import(
    tmp_path: Path, text: str, framework: str, module: str
) -> None:
    assert detect_framework(script(tmp_path, text)) == DetectedFramework(
        framework, module, "train.py"
    )


def test_imports_of_a_module_next_to_the_script_are_scanned(tmp_path: Path) -> None:
    script(tmp_path, "import torch\n", "model.py")
    assert detect_framework(script(tmp_path, "from model import Net\n")) == DetectedFramework(
        "pytorch", "torch", "model.py"
    )


def test_imports_of_a_package_next_to_the_script_are_scanned(tmp_path: Path) -> None:
    (tmp_path / "models/deep").mkdir(parents=True)
    script(tmp_path / "models", "", "__init__.py")
    script(tmp_path / "models/deep", "from ..parts import block\n", "net.py")
    script(tmp_path / "models", "import jax\n", "parts.py")
    framework = detect_framework(script(tmp_path, "from models.deep import net\n"))
    assert framework == DetectedFramework("jax", "jax", "models/parts.py")


def test_detection_does_not_execute_the_script(tmp_path: Path) -> None:
    framework = detect_framework(
        script(tmp_path, "import torch\nopen('ran', 'w')\nraise SystemExit(3)\n")
    )
    assert framework.framework == "pytorch"
    assert not (tmp_path / "ran").exists()


def test_conflicting_frameworks_require_the_framework_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="imports jax and tensorflow") as caught:
        detect_framework(script(tmp_path, "import jax\nimport tensorflow\n"))
    assert "--framework" in caught.value.hint


@pytest.mark.parametrize("text", ["print(1)\n", "import os\n", "def broken(:\n", "import .x\n"])
def test_script_without_a_framework_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="cannot detect a training framework") as caught:
        detect_framework(script(tmp_path, text))
    hint = caught.value.hint
    assert "--framework pytorch serves any script, which finds its rank in RANK" in hint


def test_circular_imports_are_scanned_once(tmp_path: Path) -> None:
    script(tmp_path, "import b\n", "a.py")
    script(tmp_path, "import a\nimport torch\n", "b.py")
    assert detect_framework(script(tmp_path, "import a\n")).file == "b.py"
