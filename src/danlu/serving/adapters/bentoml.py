"""BentoML: ``POST /invocations`` with an input as JSON."""

from __future__ import annotations

import os
from typing import Any

import bentoml  # type: ignore[import-not-found]
from packed import NAME, PackedPredictor, parse_options, run_module  # type: ignore[import-not-found]


def main(args: list[str]) -> None:
    """Run BentoML with this module's service."""
    options = parse_options(args)
    run_module(
        *("-m", "bentoml", "serve", "adapter:PackedService"),
        *("--host", options.host, "--port", str(options.port)),
        ADAPTER_WORKERS=str(options.workers),
        ADAPTER_TIMEOUT=str(options.timeout),
        BENTOML_DO_NOT_TRACK="True",
        BENTOML_HOME="/tmp/bentoml",
    )


@bentoml.service(
    name=NAME,
    workers=int(os.environ.get("ADAPTER_WORKERS") or 1),
    traffic={"timeout": float(os.environ.get("ADAPTER_TIMEOUT") or 60)},
)
class PackedService:
    """The packed model."""

    def __init__(self) -> None:
        self._packed = PackedPredictor()

    @bentoml.api(route="/invocations")  # type: ignore[untyped-decorator]
    def invoke(self, input: Any, /) -> Any:
        """Return the output for an input."""
        try:
            return self._packed.predict(input)
        except ValueError as error:
            raise bentoml.exceptions.InvalidArgument(str(error)) from error
