"""The errors of an API server, one type each; how to retry follows from the type.

::

    OutsideError
    └── ApiError                    an unsuccessful response
        ├── BadRequest              400
        ├── Unauthorized            401  missing or expired credentials
        ├── Forbidden               403  not allowed by RBAC, or a quota is exceeded
        ├── NotFound                404
        ├── AlreadyExists           409  an object of that name already exists
        ├── Conflict                409  the object changed since it was read
        ├── Gone                    410  the version or continue token has expired: list again
        ├── RequestTooLarge         413
        ├── Invalid                 422  causes name the fields
        └── TemporaryApiError            also a TemporaryError
            ├── TooManyRequests     429  with the seconds to wait, if given
            ├── InternalError       500  and other codes above 500
            ├── ServiceUnavailable  503
            └── ServerTimeout       504, or a reason that says so
    TemporaryError
    └── ConnectionLost              no response: the request may or may not have been processed
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

import msgspec

from danlu.errors import OutsideError, TemporaryError
from danlu.util.sanitize import escape_unprintable

_MAX_MESSAGE_LENGTH = 2000


class Retry(Enum):
    """What to do about an error."""

    SAME = "same"
    """Send the same request again later."""
    REREAD = "reread"
    """Read the current state, then decide again."""
    NEVER = "never"


class StatusCause(msgspec.Struct, frozen=True):
    """One cause of an error; ``field`` is a path such as ``spec.containers[0].image``."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The object and the causes of an error (meta/v1 StatusDetails)."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The body of an unsuccessful response (meta/v1 Status)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(OutsideError):
    """An unsuccessful response of an API server."""

    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, status: ApiStatus, *, what: str = "", retry_after: float = 0.0) -> None:
        # On one line: the API server lists several invalid fields with line breaks.
        message = " ".join(status.message.split())
        text = escape_unprintable(message, limit=_MAX_MESSAGE_LENGTH)
        text = text or f"the API server answered {status.code}"
        super().__init__(f"{what}: {text}" if what else text, hint=self._get_hint(status))
        self.status = status
        self.retry_after = retry_after

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The causes with the fields at fault, if the server named them."""
        return self.status.details.causes if self.status.details else ()

    def _get_hint(self, status: ApiStatus) -> str:
        return ""


class BadRequest(ApiError):
    """The request is malformed."""


class Unauthorized(ApiError):
    """The credentials are missing, invalid or expired."""

    def _get_hint(self, status: ApiStatus) -> str:
        return "the token or certificate is invalid or has expired: log in to the cluster again"


class Forbidden(ApiError):
    """The user is not allowed to do this, or a quota is exceeded."""

    def _get_hint(self, status: ApiStatus) -> str:
        # Only RBAC says "cannot"; the messages of quotas and webhooks speak for themselves.
        if " cannot " not in status.message:
            return ""
        return "`kubectl auth can-i --list` shows your permissions; ask a cluster admin for more"


class NotFound(ApiError):
    """The object, or its kind, does not exist."""

    retry = Retry.REREAD


class AlreadyExists(ApiError):
    """An object of that name already exists."""

    retry = Retry.REREAD


class Conflict(ApiError):
    """The object is not the one that was read: its version or its uid differs."""

    retry: ClassVar[Retry] = Retry.REREAD


class Gone(ApiError):
    """The version to continue from has expired: list again."""

    retry = Retry.REREAD


class RequestTooLarge(ApiError):
    """The object is larger than the server or etcd accepts."""


class Invalid(ApiError):
    """The object fails validation; ``causes`` name the fields."""


class TemporaryApiError(ApiError, TemporaryError):
    """An error that may go away; ``retry_after`` is the delay the server asked for, or 0."""

    retry = Retry.SAME


class TooManyRequests(TemporaryApiError):
    """The server, or a disruption budget of an eviction, asks to retry later."""


class InternalError(TemporaryApiError):
    """The server failed."""


class ServiceUnavailable(TemporaryApiError):
    """The server, or one behind it, is unavailable."""


class ServerTimeout(TemporaryApiError):
    """The server did not finish in time; the request may have been processed."""


class ConnectionLost(TemporaryError):
    """No response was received; the request may or may not have been processed."""

    retry: ClassVar[Retry] = Retry.SAME


#: The reasons of meta/v1 (types.go, StatusReason) that are more specific than the code.
_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Gone,
    "Gone": Gone,
    "Invalid": Invalid,
    "NotFound": NotFound,
    "RequestEntityTooLarge": RequestTooLarge,
    "ServerTimeout": ServerTimeout,
    "ServiceUnavailable": ServiceUnavailable,
    "Timeout": ServerTimeout,
    "TooManyRequests": TooManyRequests,
}
_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: RequestTooLarge,
    422: Invalid,
    429: TooManyRequests,
    503: ServiceUnavailable,
    504: ServerTimeout,
}
_status_decoder = msgspec.json.Decoder(ApiStatus)


def error_from_response(
    code: int, body: bytes, *, what: str = "", retry_after: float = 0.0
) -> ApiError:
    """Return the error for a response whose body is a Status, or the text of a proxy."""
    try:
        status = _status_decoder.decode(body)
    except msgspec.MsgspecError:
        text = body[:_MAX_MESSAGE_LENGTH].decode(errors="replace").strip()
        status = ApiStatus(message=text)
    if not status.code:
        status = msgspec.structs.replace(status, code=code)
    if not retry_after and status.details:
        retry_after = float(status.details.retry_after_seconds)
    return _error_type(status)(status, what=what, retry_after=retry_after)


def _error_type(status: ApiStatus) -> type[ApiError]:
    error_type = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code)
    if error_type is not None:
        return error_type
    return InternalError if status.code >= 500 else ApiError
