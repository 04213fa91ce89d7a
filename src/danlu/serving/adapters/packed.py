"""What the adapters of model servers share: the options of ``serve``, and the packed predictor."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

import predictor_values as values  # type: ignore[import-not-found]
import run  # type: ignore[import-not-found]  # the runner, in the image

NAME = os.environ.get("MODEL_NAME") or "model"
VERSION = os.environ.get("MODEL_VERSION") or "1"


def parse_options(args: list[str]) -> argparse.Namespace:
    """Return the options that servers have in common; those of danlu's own are ignored."""
    parser = argparse.ArgumentParser("serve", description="Serve the model of this image.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8080))
    parser.add_argument("--workers", type=int, default=1, help="processes, each with the model")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for an answer")
    parser.add_argument("--max-batch", type=int, default=32, help="most rows of a call")
    return parser.parse_known_args(args)[0]


def run_module(*words: str, **variables: str) -> NoReturn:
    """Replace this process by a module of its Python, which finds the adapter."""
    # Processes that the server starts get the path as well.
    os.environ.update(variables, PYTHONPATH=os.pathsep.join(sys.path[:2]))
    os.execv(sys.executable, [sys.executable, *words])


class PackedPredictor:
    """The predictor of the image, with its model loaded."""

    def __init__(self) -> None:
        self._predictor = run.load_predictor(run.read_json("predictor.json"))
        self._schema = values.describe_predictor(self._predictor)

    def predict(self, value: Any) -> Any:
        """Return the output for an input, both as JSON values.

        Raises ``ValueError`` for an input that does not fit.
        """
        try:
            arguments = values.convert_input(value, self._schema)
        except values.InvalidInputError as error:
            raise ValueError(str(error)) from error
        return values.encode_value(self._predictor.predict(**arguments), plain=True)

    def predict_outputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; any other result than a dictionary is called ``output``."""
        result = self.predict(inputs)
        return result if isinstance(result, dict) else {"output": result}
