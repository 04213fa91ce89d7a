"""Predictors that return what they got."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from danlu.serving.server.app import ServerApp, ServerOptions
from danlu.serving.server.model import ServedModel

#: Types of MLflow's signatures.
TYPES = {"double": "float64", "long": "int64", "binary": "bytes"}


DEFAULTS = ServerOptions()


def serve(predictor: Any, examples: Any = (), options: ServerOptions = DEFAULTS) -> ServerApp:
    """An application that has loaded ``predictor``."""

    def load() -> ServedModel:
        model = ServedModel(predictor, {"examples": list(examples)}, name="m")
        model.warm_up()
        return model

    app = ServerApp(load, options)
    app.start()
    return app


class Recorder:
    """Takes one parameter ``x``, annotated with ``kind``, and shows what it got."""

    def __init__(self, kind: Any, columns: Any = None, *, ignores_others: bool = False) -> None:
        def predict(x: Any) -> Any:
            return {"got": show(x)}

        predict.__annotations__ = {"x": kind}
        self.predict = predict
        self.columns = columns
        self.ignores_other_columns = ignores_others


def array_recorder(dtype: str | None = None) -> Recorder:
    return Recorder(np.ndarray if dtype is None else Annotated[np.ndarray, dtype])


def show(value: Any) -> Any:
    """Return a value with the types that it has, as JSON."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    if hasattr(value, "to_numpy"):
        cells = (map(_show_cell, value[name].tolist()) for name in value.columns)
        return {
            "columns": [str(name) for name in value.columns],
            "dtypes": [_name_type(dtype) for dtype in value.dtypes],
            "rows": list(map(list, zip(*cells, strict=True))),
            "index": [str(label) for label in value.index],
        }  # fmt: skip
    return value


def _name_type(dtype: Any) -> str:
    return "object" if str(dtype) in ("str", "string") else str(dtype)


def _show_cell(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return cell.decode()
    return None if cell != cell else cell
