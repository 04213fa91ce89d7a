"""Triton's Python backend: the input and the output are JSON in tensors of one ``BYTES``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from packed import NAME, parse_options  # type: ignore[import-not-found]

_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: 0
input [ {{ name: "input", data_type: TYPE_STRING, dims: [ 1 ] }} ]
output [ {{ name: "output", data_type: TYPE_STRING, dims: [ 1 ] }} ]
instance_group [ {{ count: {workers}, kind: KIND_CPU }} ]
"""
_MODEL = """\
import json

import numpy as np
import triton_python_backend_utils as backend
from packed import PackedPredictor


class TritonPythonModel:
    def initialize(self, args):
        self._packed = PackedPredictor()

    def execute(self, requests):
        return [self._answer_request(request) for request in requests]

    def _answer_request(self, request):
        data = backend.get_input_tensor_by_name(request, "input").as_numpy().reshape(-1)[0]
        try:
            text = json.dumps(self._packed.predict(json.loads(data)))
        except ValueError as error:
            return backend.InferenceResponse(error=backend.TritonError(str(error)))
        tensor = backend.Tensor("output", np.array([text.encode()], dtype=np.object_))
        return backend.InferenceResponse([tensor])
"""


def main(args: list[str]) -> None:
    """Write Triton's model repository and replace this process by it."""
    options = parse_options(args)
    repository = tempfile.mkdtemp(prefix="triton-")
    write_repository(repository, options.workers)
    program = shutil.which("tritonserver") or "/opt/tritonserver/bin/tritonserver"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    os.execv(
        program,
        [
            *(program, "--model-repository", repository),
            *("--http-address", options.host, "--http-port", str(options.port)),
        ],
    )


def write_repository(directory: str, workers: int) -> None:
    """Write ``NAME/config.pbtxt`` and ``NAME/1/model.py``."""
    version = os.path.join(directory, NAME, "1")
    os.makedirs(version)
    config = _CONFIG.format(name=NAME, workers=workers)
    for path, text in (("config.pbtxt", config), ("1/model.py", _MODEL)):
        with open(os.path.join(directory, NAME, path), "w", encoding="utf-8") as file:
            file.write(text)
