"""An ONNX model, run by ONNX Runtime on the CPU."""

from __future__ import annotations

import importlib
import os
from typing import Any

_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(int8)": "int8",
    "tensor(uint8)": "uint8", "tensor(bool)": "bool",
}  # fmt: skip


class OnnxPredictor:
    """The outputs of the model by name, for its inputs by name."""

    def load(self, directory: str) -> None:
        """Load ``model.onnx``, else the first ``.onnx`` file."""
        onnxruntime = importlib.import_module("onnxruntime")

        names = sorted(name for name in os.listdir(directory) if name.endswith(".onnx"))
        if not names:
            raise FileNotFoundError("no file that ends in .onnx")
        name = "model.onnx" if "model.onnx" in names else names[0]
        path = os.path.join(directory, name)
        self.session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        #: Lengths that the model leaves open have names, or none.
        self.columns = {
            item.name: {
                "dtype": _TYPES.get(item.type, "object"),
                "shape": [length if isinstance(length, int) else None for length in item.shape],
            }
            for item in self.session.get_inputs()
        }

    def predict(self, inputs: dict) -> dict:  # type: ignore[type-arg]
        """Return the outputs; ``inputs`` are arrays by name."""
        names = [item.name for item in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, inputs)))  # noqa: B905 (Python 3.9)

    def example(self) -> Any:
        """Return zeros of each input's shape, with 1 for lengths that the model leaves open."""
        numpy = importlib.import_module("numpy")

        inputs = self.session.get_inputs()
        if any(item.type not in _TYPES for item in inputs):
            return None
        shapes = {
            item.name: [length if isinstance(length, int) else 1 for length in item.shape]
            for item in inputs
        }
        return {
            "inputs": {
                item.name: numpy.zeros(shapes[item.name], _TYPES[item.type]) for item in inputs
            }
        }
