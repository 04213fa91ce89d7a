"""A scikit-learn estimator, saved by joblib, skops or pickle.

joblib and pickle files are programs: loading one executes code that its author chose. Prefer skops
(https://skops.readthedocs.io), which loads only types of scikit-learn, NumPy and SciPy.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_SUFFIXES = (".skops", ".joblib", ".pkl", ".pickle")


class InvalidFeatures(ValueError):
    """What scikit-learn refuses is the client's fault."""

    status_code = 400


class SklearnPredictor:
    """``predict(X)`` of the estimator, and ``predict_proba`` if it has that.

    ``X`` is a DataFrame for an estimator that was trained on one, an array for one that knows how
    many features it has, else a list, such as of texts.
    """

    def load(self, directory: str) -> None:
        """Load the first file with a known suffix."""
        self.model: Any = _load_first(directory)
        names = getattr(self.model, "feature_names_in_", None)
        count = getattr(self.model, "n_features_in_", None)
        self.columns: Any = count if names is None else list(map(str, names))
        annotation: Any = list
        if names is not None:
            annotation = importlib.import_module("pandas").DataFrame
        elif count is not None:
            annotation = importlib.import_module("numpy").ndarray

        def predict(X: Any) -> dict[str, Any]:  # noqa: N803
            return self._call_model(X)

        predict.__annotations__ = {"X": annotation, "return": dict}
        self.predict = predict  # type: ignore[method-assign]

    def predict(self, X: Any) -> dict[str, Any]:  # noqa: N803
        """Return the ``predictions`` for rows of features, and ``probabilities`` of classifiers.

        :meth:`load` replaces it by one with the type of ``X``.
        """
        raise NotImplementedError

    def _call_model(self, rows: Any) -> dict[str, Any]:
        try:
            found = {"predictions": self.model.predict(rows)}
            if hasattr(self.model, "predict_proba"):
                found["probabilities"] = self.model.predict_proba(rows)
        except (AttributeError, TypeError, ValueError) as error:  # a text estimator has lists
            raise InvalidFeatures(f"{type(self.model).__name__}: {error}") from error
        return found

    def example(self) -> Any:
        """Return two rows of numbers, if the estimator knows how many features it has."""
        count = getattr(self.model, "n_features_in_", None)
        if count is None:
            return None
        return [[0.0] * count, [(number % 7) / 7 for number in range(count)]]


def _load_first(directory: str) -> Any:
    for suffix in _SUFFIXES:
        for name in sorted(os.listdir(directory)):
            if name.endswith(suffix):
                return _load_file(os.path.join(directory, name), suffix)
    raise FileNotFoundError(f"no file that ends in {', '.join(_SUFFIXES)}")


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
