"""MLServer: the Open Inference Protocol; outputs that are no numbers are JSON in ``BYTES``."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import numpy as np
from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec, StringCodec  # type: ignore[import-not-found]
from mlserver.errors import MLServerError  # type: ignore[import-not-found]
from mlserver.types import (  # type: ignore[import-not-found]
    InferenceRequest,
    InferenceResponse,
    RequestInput,
    ResponseOutput,
)
from packed import (  # type: ignore[import-not-found]
    NAME,
    VERSION,
    PackedPredictor,
    parse_options,
    run_module,
)


def main(args: list[str]) -> None:
    """Write MLServer's settings and run it."""
    options = parse_options(args)
    directory = tempfile.mkdtemp(prefix="mlserver-")
    settings: dict[str, dict[str, Any]] = {
        "settings.json": {
            "host": options.host,
            "http_port": options.port,
            "grpc_port": 0,
            "metrics_endpoint": None,
            # 0 is this process; others are started in addition to it.
            "parallel_workers": options.workers if options.workers > 1 else 0,
        },
        "model-settings.json": {
            "name": NAME,
            "implementation": "adapter.PackedModel",
            "parameters": {"version": VERSION},
        },
    }
    for name, content in settings.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    run_module("-c", "from mlserver.cli import main; main()", "start", directory)


class PackedModel(MLModel):  # type: ignore[misc]
    """The packed model."""

    async def load(self) -> bool:
        """Load the model."""
        self._packed = PackedPredictor()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return the outputs for the inputs, which are parameters of the predictor by name."""
        inputs = {item.name: _decode_input(item) for item in payload.inputs}
        try:
            outputs = self._packed.predict_outputs(inputs)
        except ValueError as error:
            raise MLServerError(str(error), 400) from error
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[_encode_output(name, value) for name, value in outputs.items()],
        )


def _decode_input(item: RequestInput) -> Any:
    if item.datatype == "BYTES":
        return StringCodec.decode_input(item)
    return NumpyCodec.decode_input(item).tolist()


def _encode_output(name: str, value: Any) -> ResponseOutput:
    array = np.asarray(value) if not isinstance(value, dict) else None
    if array is not None and array.dtype.kind in "biuf":
        return NumpyCodec.encode_output(name, array)
    texts = value if isinstance(value, list) else [value]
    lines = [text if isinstance(text, str) else json.dumps(text) for text in texts]
    return StringCodec.encode_output(name, lines)
