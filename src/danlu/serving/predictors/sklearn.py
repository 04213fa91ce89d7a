"""A scikit-learn estimator, saved by joblib, skops or pickle.

joblib and pickle files are programs: loading one executes code that its author chose. Prefer skops
(https://skops.readthedocs.io), which loads only types of scikit-learn, NumPy and SciPy.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_SUFFIXES = (".skops", ".joblib", ".pkl", ".pickle")


class SklearnPredictor:
    """``predict(X)`` of the estimator, and ``predict_proba`` if it has that."""

    def load(self, directory: str) -> None:
        """Load the first file with a known suffix."""
        for suffix in _SUFFIXES:
            for name in sorted(os.listdir(directory)):
                if name.endswith(suffix):
                    self.model: Any = _load_file(os.path.join(directory, name), suffix)
                    return
        raise FileNotFoundError(f"no file that ends in {', '.join(_SUFFIXES)}")

    def predict(self, X: list) -> dict:  # type: ignore[type-arg]  # noqa: N803
        """Return the ``predictions`` for rows of features, and ``probabilities`` of classifiers."""
        rows = X
        names = getattr(self.model, "feature_names_in_", None)
        if names is not None:
            pandas = importlib.import_module("pandas")

            rows = pandas.DataFrame(X, columns=list(names))
        found = {"predictions": self.model.predict(rows)}
        if hasattr(self.model, "predict_proba"):
            found["probabilities"] = self.model.predict_proba(rows)
        return found

    def example(self) -> Any:
        """Return two rows of numbers, if the estimator knows how many features it has."""
        count = getattr(self.model, "n_features_in_", None)
        if count is None:
            return None
        return [[0.0] * count, [(number % 7) / 7 for number in range(count)]]


def _load_file(path: str, suffix: str) -> Any:
    if suffix == ".skops":
        skops_io = importlib.import_module("skops.io")

        return skops_io.load(path)
    if suffix == ".joblib":
        joblib = importlib.import_module("joblib")

        return joblib.load(path)
    pickle = importlib.import_module("pickle")

    with open(path, "rb") as file:
        return pickle.load(file)
