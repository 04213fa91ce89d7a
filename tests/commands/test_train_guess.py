"""The framework of a script is known by its imports; the script is never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.frameworkguess import Guess, guess
from danlu.errors import UsageError


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
def test_an_import_says_the_framework(
    tmp_path: Path, text: str, framework: str, module: str
) -> None:
    assert guess(script(tmp_path, text)) == Guess(framework, module, "train.py")


def test_a_module_beside_the_script_is_looked_at(tmp_path: Path) -> None:
    script(tmp_path, "import torch\n", "model.py")
    assert guess(script(tmp_path, "from model import Net\n")) == Guess(
        "pytorch", "torch", "model.py"
    )


def test_nothing_is_executed(tmp_path: Path) -> None:
    found = guess(script(tmp_path, "import torch\nopen('ran', 'w')\nraise SystemExit(3)\n"))
    assert found.framework == "pytorch"
    assert not (tmp_path / "ran").exists()


def test_two_that_exclude_each_other_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="imports jax and tensorflow") as caught:
        guess(script(tmp_path, "import jax\nimport tensorflow\n"))
    assert "--framework" in caught.value.hint


@pytest.mark.parametrize("text", ["print(1)\n", "import os\n", "def broken(:\n", "import .x\n"])
def test_none_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no framework is imported") as caught:
        guess(script(tmp_path, text))
    assert "--framework" in caught.value.hint


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    script(tmp_path, "import b\n", "a.py")
    script(tmp_path, "import a\nimport torch\n", "b.py")
    assert guess(script(tmp_path, "import a\n")).file == "b.py"
