"""Faults that a test injects into the fake API server, and the log of its requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["ApiFault", "LoggedRequest"]


@dataclass(slots=True)
class ApiFault:
    """Something that goes wrong, ``times`` times, for requests that fit.

    ``verb`` is one of Kubernetes' (get, list, watch, create, update, patch, apply, delete,
    deletecollection), ``resource`` a plural, with the subresource where there is one
    (``pods/status``), ``name`` an object's; empty ones fit any. ``status`` is answered, with
    ``retry_after`` seconds; or the connection is dropped, ``after`` the request was carried out
    or before. ``delay`` are seconds before anything of that; alone, the answer is only late.
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

    def matches(self, logged: LoggedRequest) -> bool:
        """Whether it is the turn of this fault."""
        return (
            self.times > 0
            and self.verb in ("", logged.verb)
            and self.resource in ("", logged.resource)
            and self.name in ("", logged.name)
        )


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request that came; ``resource`` is a plural, with a subresource where there is one."""

    verb: str
    resource: str
    namespace: str
    name: str


def count_requests(log: list[LoggedRequest]) -> Counter[tuple[str, str]]:
    """Requests by verb and resource."""
    return Counter((request.verb, request.resource) for request in log)
