"""KServe's Python server: V1 ``:predict`` with ``instances``."""

from __future__ import annotations

from typing import Any

import kserve  # type: ignore[import-not-found]
from packed import NAME, PackedPredictor, parse_options  # type: ignore[import-not-found]


def main(args: list[str]) -> int:
    """Run KServe's server until it is interrupted."""
    options = parse_options(args)
    model = PackedKserveModel(NAME)
    model.load()
    server = kserve.ModelServer(http_port=options.port, workers=options.workers, enable_grpc=False)
    server.start([model])
    return 0


class PackedKserveModel(kserve.Model):  # type: ignore[misc]
    """The packed model."""

    def load(self) -> bool:
        """Load the model."""
        self._packed = PackedPredictor()
        self.ready = True
        return True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Return the predictions for ``instances``."""
        if not isinstance(payload, dict) or "instances" not in payload:
            raise kserve.errors.InvalidInput("instances are missing")
        return {"predictions": self._packed.predict(payload["instances"])}
