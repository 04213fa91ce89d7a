"""Faults that a test injects into the fake API server, and the log of its requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

__all__ = ["ApiFault", "LoggedRequest"]


@dataclass(slots=True)
class ApiFault:
    """A fault that affects the next ``times`` matching requests.

    ``verb`` is a Kubernetes verb (get, list, watch, create, update, patch, apply, delete,
    deletecollection), ``resource`` a plural with an optional subresource (``pods/status``),
    ``name`` the name of an object; empty ones match any. The answer has ``status``, with
    ``retry_after`` seconds; or the connection is dropped before the request is processed, or
    ``after`` it was. ``delay`` is in seconds; a fault with only a delay answers late, and one
    with ``release`` answers when that is set.
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    times: int = 1
    status: int = 0
    retry_after: int = 0
    drop: bool = False
    after: bool = False
    delay: float = 0.0
    release: asyncio.Event | None = None

    def matches(self, logged: LoggedRequest) -> bool:
        """Return whether this fault applies to the request."""
        return (
            self.times > 0
            and self.verb in ("", logged.verb)
            and self.resource in ("", logged.resource)
            and self.name in ("", logged.name)
        )


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A received request; ``resource`` is a plural with an optional subresource."""

    verb: str
    resource: str
    namespace: str
    name: str


def count_requests(log: list[LoggedRequest]) -> Counter[tuple[str, str]]:
    """Count requests by verb and resource."""
    return Counter((request.verb, request.resource) for request in log)
