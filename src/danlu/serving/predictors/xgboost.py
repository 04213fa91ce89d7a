"""An XGBoost booster, saved by ``save_model`` (JSON or UBJSON)."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

import numpy as np


class InvalidRows(ValueError):
    """What XGBoost refuses is the client's fault."""

    status_code = 400


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
                    self.columns = _find_columns(self.booster)
                    return
        raise FileNotFoundError("no file that ends in .ubj, .json or .xgb")

    def predict(self, X: Annotated[np.ndarray, "float32", (None, None)]) -> Any:  # noqa: N803
        """Return the predictions for rows of features; NaN is a value that is missing."""
        xgboost = importlib.import_module("xgboost")

        try:
            rows = xgboost.DMatrix(X, feature_names=self.booster.feature_names)
            return self.booster.predict(rows)
        except ValueError as error:
            raise InvalidRows(str(error)) from error

    def example(self) -> Any:
        """Return two rows of numbers."""
        count = self.booster.num_features()
        return [[0.0] * count, [(number % 7) / 7 for number in range(count)]]


def _find_columns(booster: Any) -> Any:
    """Return the columns by name, and which take booleans; their number if it has no names."""
    names, types = booster.feature_names, booster.feature_types
    if not names:
        return booster.num_features()
    return {
        name: {"booleans": True} if kind == "i" else None
        for name, kind in zip(names, types or [""] * len(names))  # noqa: B905 (Python 3.9)
    }
