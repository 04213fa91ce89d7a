"""The ready-made predictors: adding one is a module here and a line below."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.serving.model_directory import ModelDirectory


class ReadyMadePredictor(msgspec.Struct, frozen=True):
    """A predictor that comes with danlu: a module of this package, and its class.

    It is chosen for a model directory that has a file which matches each of ``files``; of
    alternatives (``*.pt|*.pth``) one is enough. ``keys`` are keys of which one must be in the
    directory's JSON file named first in ``files``. ``code`` are the files that are programs:
    loading one executes what its author wrote.
    """

    name: str
    class_name: str
    files: tuple[str, ...]
    keys: tuple[str, ...] = ()
    code: str = ""

    @property
    def source(self) -> Path:
        """The file of the module."""
        return Path(__file__).with_name(f"{self.name}.py")

    def matches(self, model: ModelDirectory) -> bool:
        """Return whether the model directory has the files of this predictor."""
        names = [file.path for file in model.files]
        return all(_has_match(names, pattern) for pattern in self.files) and self._has_key(model)

    def find_code(self, model: ModelDirectory) -> tuple[str, ...]:
        """Return the paths of the model's files that are programs."""
        if not self.code:
            return ()
        return tuple(file.path for file in model.files if _has_match([file.path], self.code))

    def _has_key(self, model: ModelDirectory) -> bool:
        if not self.keys:
            return True
        for file in model.files:
            if fnmatch.fnmatch(file.path, self.files[0]) and file.path.endswith(".json"):
                try:
                    content = json.loads((model.path / file.path).read_bytes())
                except (ValueError, OSError, RecursionError):
                    continue
                if isinstance(content, dict) and not content.keys().isdisjoint(self.keys):
                    return True
        return False


#: The first that matches a model directory is chosen.
READY_MADE = (
    ReadyMadePredictor("mlflow", "MlflowPredictor", ("MLmodel",), code="*.pkl|*.pickle|*.joblib"),
    ReadyMadePredictor("tensorflow", "TensorflowPredictor", ("saved_model.pb|saved_model.pbtxt",)),
    ReadyMadePredictor("onnx", "OnnxPredictor", ("*.onnx",)),
    ReadyMadePredictor(
        "huggingface",
        "HuggingFacePredictor",
        ("config.json", "*.safetensors|pytorch_model*.bin"),
        keys=("model_type", "architectures"),
    ),
    ReadyMadePredictor(
        "sklearn",
        "SklearnPredictor",
        ("*.skops|*.joblib|*.pkl|*.pickle",),
        code="*.joblib|*.pkl|*.pickle",
    ),
    ReadyMadePredictor("xgboost", "XgboostPredictor", ("*.ubj|*.xgb",)),
    ReadyMadePredictor("xgboost", "XgboostPredictor", ("*.json",), keys=("learner",)),
    ReadyMadePredictor("torch", "TorchPredictor", ("*.pt2|*.pt|*.pth|*.safetensors",)),
)


def choose_predictor(name: str, model: ModelDirectory) -> ReadyMadePredictor:
    """Return the ready-made predictor ``name``; if that is empty, the one for the model's files.

    Raises :class:`UsageError` if no predictor fits.
    """
    names = tuple(dict.fromkeys(item.name for item in READY_MADE))
    if name:
        for item in READY_MADE:
            if item.name == name:
                return item
        raise UsageError(
            f"unknown predictor {name!r}", hint=f"use FILE:CLASS, or one of {', '.join(names)}"
        )
    for item in READY_MADE:
        if item.matches(model):
            return item
    raise UsageError(
        f"no ready-made predictor fits the files in {model.path}",
        hint=f"name a class with --predictor FILE:CLASS, or one of {', '.join(names)}",
    )


def _has_match(names: Sequence[str], patterns: str) -> bool:
    # Only files at the top: a predictor looks for its file there.
    return any(
        fnmatch.fnmatch(name, pattern)
        for name in names
        if "/" not in name
        for pattern in patterns.split("|")
    )
