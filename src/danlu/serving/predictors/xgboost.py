"""An XGBoost booster, saved by ``save_model`` (JSON or UBJSON)."""

from __future__ import annotations

import importlib
import os
from typing import Any


class XgboostPredictor:
    """The booster's predictions for rows of features."""

    def load(self, directory: str) -> None:
        """Load the first ``.ubj``, ``.json`` or ``.xgb`` file."""
        xgboost = importlib.import_module("xgboost")

        for suffix in (".ubj", ".json", ".xgb"):
            for name in sorted(os.listdir(directory)):
                if name.endswith(suffix):
                    self.booster: Any = xgboost.Booster()
                    self.booster.load_model(os.path.join(directory, name))
                    return
        raise FileNotFoundError("no file that ends in .ubj, .json or .xgb")

    def predict(self, X: list) -> Any:  # type: ignore[type-arg]  # noqa: N803
        """Return the predictions for rows of features."""
        numpy = importlib.import_module("numpy")
        xgboost = importlib.import_module("xgboost")

        rows = numpy.asarray(X, "float32")
        return self.booster.predict(xgboost.DMatrix(rows), validate_features=False)

    def example(self) -> Any:
        """Return two rows of numbers."""
        count = self.booster.num_features()
        return [[0.0] * count, [(number % 7) / 7 for number in range(count)]]
