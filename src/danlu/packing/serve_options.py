"""The options of ``danlu serve``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danlu.serving import layout

#: A server accepts requests for 5 s after SIGTERM; the rest is to spare.
_STOP_MARGIN = 10.0


class ServeOptions(msgspec.Struct, frozen=True):
    """The options of ``danlu serve``.

    Attributes:
        timeout: Seconds that a request may take.
        max_batch: The most rows of a call of the predictor.
        cors: The origins whose pages may send requests; ``*`` is all.
        grpc_port: Where gRPC is answered; None for nowhere.
        name: The name of a server in the background or on a cluster; empty for the image's.
        replicas: On a cluster: a number, or a range for an autoscaler.
        cpus: On a cluster: cores that a pod requests.
        memory: On a cluster: what a pod requests and may use, such as ``4G``; empty for no limit.
        kserve: Use KServe's objects instead of a Deployment.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    timeout: float = 60.0
    max_batch: int = 32
    gpus: str = ""
    cors: tuple[str, ...] = ()
    grpc_port: int | None = None
    name: str = ""
    replicas: str = "1"
    cpus: float | None = None
    memory: str = ""
    kserve: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The server's command line in the image."""
        grpc = () if self.grpc_port is None else ("--grpc-port", str(self.grpc_port))
        return (
            *(layout.SERVE, "--host", self.host, "--port", str(self.port)),
            *("--workers", str(self.workers), "--timeout", f"{self.timeout:g}"),
            *("--max-batch", str(self.max_batch)),
            *grpc,
            *(word for origin in self.cors for word in ("--cors", origin)),
        )


def find_stop_seconds(command: Sequence[str]) -> float:
    """Return how long a server that has been started by ``command`` may take to end.

    After SIGTERM it accepts requests for 5 s, and then answers for up to its timeout.
    """
    return float(command[command.index("--timeout") + 1]) + _STOP_MARGIN
