"""Errors of the API server, with the real server's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.kubernetes.kinds import ResourceKind

__all__ = [
    "StatusError",
    "already_exists",
    "bad_request",
    "conflict",
    "expired_error",
    "forbidden_error",
    "invalid",
    "no_such_path",
    "not_found",
    "required_cause",
    "unsupported_media",
]

Cause = dict[str, str]


class StatusError(Exception):
    """An error response: becomes a Status (meta/v1)."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    def to_status(self) -> dict[str, Any]:
        """Return the Status object."""
        details = dict(self.details)
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": self.code,
        }


def _object_details(kind: ResourceKind, name: str, causes: Sequence[Cause] = ()) -> dict[str, Any]:
    results: dict[str, Any] = {"name": name, "kind": kind.plural}
    if kind.group:
        results["group"] = kind.group
    if causes:
        results["causes"] = list(causes)
    return results


def not_found(kind: ResourceKind, name: str) -> StatusError:
    """The object does not exist."""
    text = f'{kind.label} "{name}" not found'
    return StatusError(404, "NotFound", text, details=_object_details(kind, name))


def no_such_path(served: bool) -> StatusError:
    """Unknown path; ``served`` is whether its group and version are served."""
    if served:
        return StatusError(404, "NotFound", "the server could not find the requested resource")
    return StatusError(404, "", "404 page not found")


def already_exists(kind: ResourceKind, name: str) -> StatusError:
    """An object of this name exists."""
    text = f'{kind.label} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details=_object_details(kind, name))


CHANGED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(kind: ResourceKind, name: str, why: str = CHANGED) -> StatusError:
    """The object was changed or replaced."""
    text = f'Operation cannot be fulfilled on {kind.label} "{name}": {why}'
    return StatusError(409, "Conflict", text, details=_object_details(kind, name))


def forbidden_error(
    kind: ResourceKind, name: str, why: str, causes: Sequence[Cause] = ()
) -> StatusError:
    """The request is not allowed."""
    text = f'{kind.label} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, details=_object_details(kind, name, causes))


def invalid(kind: ResourceKind, name: str, causes: Sequence[Cause]) -> StatusError:
    """Fields are invalid."""
    output = [f"{cause['field']}: {cause['message']}" for cause in causes]
    text = output[0] if len(output) == 1 else f"[{', '.join(output)}]"
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = _object_details(kind, name, causes) | {"kind": kind.kind}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def required_cause(field: str, hint: str = "") -> Cause:
    """Return the cause for a missing field."""
    message = f"Required value: {hint}" if hint else "Required value"
    return {"reason": "FieldValueRequired", "message": message, "field": field}


def expired_error(message: str) -> StatusError:
    """The resource version is too old."""
    return StatusError(410, "Expired", message)


def bad_request(message: str) -> StatusError:
    """The request is malformed."""
    return StatusError(400, "BadRequest", message)


def unsupported_media(message: str) -> StatusError:
    """The media type of the body is not supported."""
    return StatusError(415, "UnsupportedMediaType", message)
