"""A TensorFlow SavedModel, called by its signature ``serving_default``."""

from __future__ import annotations

import importlib
from typing import Any


class TensorflowPredictor:
    """The outputs of the signature by name, for its inputs by name."""

    def load(self, directory: str) -> None:
        """Load the SavedModel."""
        tensorflow = importlib.import_module("tensorflow")

        self.model: Any = tensorflow.saved_model.load(directory)
        self.function: Any = self.model.signatures["serving_default"]
        self.columns = {
            name: {
                "dtype": "object" if item.dtype.name == "string" else item.dtype.name,
                **({} if item.shape.rank is None else {"shape": list(item.shape)}),
            }
            for name, item in self.function.structured_input_signature[1].items()
        }

    def predict(self, inputs: dict) -> dict:  # type: ignore[type-arg]
        """Return the outputs; ``inputs`` are arrays by name."""
        tensorflow = importlib.import_module("tensorflow")

        feed = {name: tensorflow.constant(value) for name, value in inputs.items()}
        return dict(self.function(**feed))

    def example(self) -> Any:
        """Return zeros of each input's shape, with 1 for lengths that the model leaves open."""
        numpy = importlib.import_module("numpy")

        about = self.function.structured_input_signature[1]
        if any(item.shape.rank is None or item.dtype.name == "string" for item in about.values()):
            return None
        return {
            "inputs": {
                name: numpy.zeros([length or 1 for length in item.shape], item.dtype.name)
                for name, item in about.items()
            }
        }
