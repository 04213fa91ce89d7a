"""LitServe: ``POST /invocations`` with an input as JSON."""

from __future__ import annotations

from typing import Any

import litserve  # type: ignore[import-not-found]
from fastapi import HTTPException  # type: ignore[import-not-found]
from packed import PackedPredictor, parse_options  # type: ignore[import-not-found]


def main(args: list[str]) -> int:
    """Run LitServe until it is interrupted."""
    options = parse_options(args)
    server = litserve.LitServer(
        PackedAPI(api_path="/invocations"),
        workers_per_device=options.workers,
        timeout=options.timeout,
    )
    server.run(host=options.host, port=options.port, generate_client_file=False)
    return 0


class PackedAPI(litserve.LitAPI):  # type: ignore[misc]
    """The packed model."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self._packed = PackedPredictor()

    # LitServe takes JSON of any form only if the parameter has no annotation.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return the input as it was sent."""
        return request

    def predict(self, x: Any) -> Any:
        """Return the output for an input."""
        try:
            return self._packed.predict(x)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    def encode_response(self, output: Any) -> Any:
        """Return the output unchanged."""
        return output
