"""An MLflow model, loaded as ``python_function``.

Most flavours pickle the model: loading one executes code that its author chose.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


class MlflowPredictor:
    """``predict`` of the model."""

    def load(self, directory: str) -> None:
        """Load the model."""
        os.environ.setdefault("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
        mlflow_pyfunc = importlib.import_module("mlflow.pyfunc")

        self.model: Any = mlflow_pyfunc.load_model(directory)

    def predict(self, inputs: list) -> Any:  # type: ignore[type-arg]
        """Return the predictions for rows: lists of numbers, or objects with named columns."""
        pandas = importlib.import_module("pandas")

        if inputs and isinstance(inputs[0], dict):
            return self.model.predict(pandas.DataFrame(inputs))
        numpy = importlib.import_module("numpy")

        return self.model.predict(numpy.asarray(inputs))

    def example(self) -> Any:
        """Return the example that was logged with the model."""
        example = self.model.input_example
        if example is None:
            return None
        if hasattr(example, "to_dict"):
            return {"inputs": example.to_dict("records")}
        return {"inputs": example.tolist() if hasattr(example, "tolist") else example}
