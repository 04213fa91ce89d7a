"""What an API server refuses, in the words of the real one."""

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
    """An answer that is no success: becomes a Status (meta/v1)."""

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
        """The Status object."""
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
    found: dict[str, Any] = {"name": name, "kind": kind.plural}
    if kind.group:
        found["group"] = kind.group
    if causes:
        found["causes"] = list(causes)
    return found


def not_found(kind: ResourceKind, name: str) -> StatusError:
    """There is no such object."""
    text = f'{kind.label} "{name}" not found'
    return StatusError(404, "NotFound", text, details=_object_details(kind, name))


def no_such_path(served: bool) -> StatusError:
    """Nothing is there; ``served`` says whether at least the group and version are."""
    if served:
        return StatusError(404, "NotFound", "the server could not find the requested resource")
    return StatusError(404, "", "404 page not found")


def already_exists(kind: ResourceKind, name: str) -> StatusError:
    """There is one of that name."""
    text = f'{kind.label} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details=_object_details(kind, name))


CHANGED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(kind: ResourceKind, name: str, why: str = CHANGED) -> StatusError:
    """The object is another than the one that was meant."""
    text = f'Operation cannot be fulfilled on {kind.label} "{name}": {why}'
    return StatusError(409, "Conflict", text, details=_object_details(kind, name))


def forbidden_error(
    kind: ResourceKind, name: str, why: str, causes: Sequence[Cause] = ()
) -> StatusError:
    """It may not be done."""
    text = f'{kind.label} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, details=_object_details(kind, name, causes))


def invalid(kind: ResourceKind, name: str, causes: Sequence[Cause]) -> StatusError:
    """Fields that may not be as they are."""
    said = [f"{cause['field']}: {cause['message']}" for cause in causes]
    shown = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = _object_details(kind, name, causes) | {"kind": kind.kind}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {shown}', details=details)


def required_cause(field: str, hint: str = "") -> Cause:
    """The cause for a field that is missing."""
    message = f"Required value: {hint}" if hint else "Required value"
    return {"reason": "FieldValueRequired", "message": message, "field": field}


def expired_error(message: str) -> StatusError:
    """The version is too old."""
    return StatusError(410, "Expired", message)


def bad_request(message: str) -> StatusError:
    """The request makes no sense."""
    return StatusError(400, "BadRequest", message)


def unsupported_media(message: str) -> StatusError:
    """That type of body is not taken."""
    return StatusError(415, "UnsupportedMediaType", message)
