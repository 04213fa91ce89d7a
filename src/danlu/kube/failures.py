"""Refusals of an API server, each a type of its own; whether to try again follows from it.

::

    OutsideError
    └── ApiError                    an answer that is no success
        ├── BadRequest              400  the request makes no sense
        ├── Unauthorized            401  who are you?
        ├── Forbidden               403  you may not (or a quota is used up)
        ├── NotFound                404
        ├── AlreadyExists           409  a create came second
        ├── Conflict                409  the object changed since it was read: read it again
        │   └── ApplyConflict       409  another manager owns the field
        ├── Gone                    410  the version, or the rest of a list, is too old: list again
        ├── TooLarge                413  more than the server takes
        ├── Invalid                 422  causes name the fields
        └── TemporaryApiError            also a TemporaryError: worth trying again as it is
            ├── TooManyRequests     429  with the seconds it asked for
            ├── ServerFailed        500  and other codes from 500
            ├── Unavailable         503
            └── ServerTimeout       504, or a reason that says so
    TemporaryError
    └── ConnectionLost              no answer at all: the request may have been carried out

``repeat`` of a type says what to do: ``"same"`` (the same request later), ``"fresh"`` (read what is
there now, then decide anew) or ``"never"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import msgspec

from danlu.errors import OutsideError, TemporaryError

__all__ = [
    "AlreadyExists",
    "ApiError",
    "ApplyConflict",
    "BadRequest",
    "Cause",
    "Conflict",
    "ConnectionLost",
    "Details",
    "Forbidden",
    "Gone",
    "Invalid",
    "NotFound",
    "Repeat",
    "ServerFailed",
    "ServerTimeout",
    "Status",
    "TemporaryApiError",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "error_of",
    "translated",
]

Repeat = Literal["same", "fresh", "never"]
_MOST = 2000


class Cause(msgspec.Struct, frozen=True):
    """One reason of a refusal; ``field`` is a path (``spec.containers[0].image``)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """What a refusal is about (meta/v1 StatusDetails)."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of a server that refuses (meta/v1 Status)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class ApiError(OutsideError):
    """An API server's refusal; ``status`` is what it said, ``causes`` the fields it blames."""

    repeat: ClassVar[Repeat] = "never"

    def __init__(self, status: Status, *, what: str = "", retry_after: float = 0.0) -> None:
        text = printable(status.message) or f"the API server answered {status.code}"
        super().__init__(f"{what}: {text}" if what else text, hint=self._advice(status))
        self.status = status
        self.retry_after = retry_after

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The fields that are wrong, where the server named them."""
        return self.status.details.causes if self.status.details else ()

    def _advice(self, status: Status) -> str:
        return ""


class BadRequest(ApiError):
    """The request makes no sense to the server."""


class Unauthorized(ApiError):
    """The server does not know who asks."""

    def _advice(self, status: Status) -> str:
        return "a token or certificate is wrong or has expired: log in to the cluster again"


class Forbidden(ApiError):
    """Whoever asks may not do that, or a quota does not allow it."""

    def _advice(self, status: Status) -> str:
        # The words of RBAC; a quota and a webhook say for themselves what they want.
        if " cannot " not in status.message:
            return ""
        return "`kubectl auth can-i --list` tells what you may; who runs the cluster can give more"


class NotFound(ApiError):
    """There is no such object, or no such kind of object."""

    repeat = "fresh"


class AlreadyExists(ApiError):
    """An object of that name is there already."""

    repeat = "fresh"


class Conflict(ApiError):
    """The object is not the one that was read: another version, or another uid."""

    repeat: ClassVar[Repeat] = "fresh"


class ApplyConflict(Conflict):
    """A field of a server-side apply belongs to another manager; ``causes`` name both."""

    repeat = "never"


class Gone(ApiError):
    """The version to go on from has been forgotten: list again."""

    repeat = "fresh"


class TooLarge(ApiError):
    """The object is bigger than the server, or its store, takes."""


class Invalid(ApiError):
    """The object says something that may not be; ``causes`` name the fields."""


class TemporaryApiError(ApiError, TemporaryError):
    """A refusal of the moment; ``retry_after`` is the seconds the server asked for, or 0."""

    repeat = "same"


class TooManyRequests(TemporaryApiError):
    """The server, or an eviction's budget, asks to come later."""


class ServerFailed(TemporaryApiError):
    """The server failed on its own side."""


class Unavailable(TemporaryApiError):
    """The server, or one behind it, is not there now."""


class ServerTimeout(TemporaryApiError):
    """The server did not finish in time: the request may have been carried out."""


class ConnectionLost(TemporaryError):
    """No answer came: the request may have been carried out, or not."""

    repeat: ClassVar[Repeat] = "same"


#: The reasons of meta/v1 (types.go, StatusReason) that say more than the code does.
_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Gone,
    "Gone": Gone,
    "Invalid": Invalid,
    "NotFound": NotFound,
    "RequestEntityTooLarge": TooLarge,
    "ServerTimeout": ServerTimeout,
    "ServiceUnavailable": Unavailable,
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
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
    503: Unavailable,
    504: ServerTimeout,
}
_status = msgspec.json.Decoder(Status)


def error_of(code: int, body: bytes, *, what: str = "", retry_after: float = 0.0) -> ApiError:
    """The error for an answer with ``code``; its body is a Status, or a proxy's words."""
    try:
        status = _status.decode(body)
    except msgspec.MsgspecError:
        status = Status(message=body[:_MOST].decode(errors="replace").strip())
    if not status.code:
        status = msgspec.structs.replace(status, code=code)
    return _type_of(status)(status, what=what, retry_after=retry_after or _asked(status))


def _type_of(status: Status) -> type[ApiError]:
    found = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code)
    if found is Conflict and status.details and _is_apply(status.details):
        return ApplyConflict
    if found is not None:
        return found
    return ServerFailed if status.code >= 500 else ApiError


def _is_apply(details: Details) -> bool:
    return any(cause.reason == "FieldManagerConflict" for cause in details.causes)


def _asked(status: Status) -> float:
    return float(status.details.retry_after_seconds) if status.details else 0.0


@contextmanager
def translated(server: str) -> Iterator[None]:
    """Turn what aiohttp raises into our errors."""
    import aiohttp

    try:
        yield
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise OutsideError(
            f"the API server {server} cannot be trusted: {_first_line(error)}",
            hint="its authority is certificate-authority-data in the kubeconfig",
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise ConnectionLost(
            f"cannot reach the API server {server}: {_first_line(error.os_error)}",
            hint="does the cluster run, and is it the right context of the kubeconfig?",
        ) from error
    except TimeoutError as error:
        # Of aiohttp's own, some are connections that broke, too.
        raise ConnectionLost(
            f"the API server {server} took too long to answer",
            hint="does the cluster run, and may it be reached from here?",
        ) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise ConnectionLost(
            f"the API server {server} ended the connection: {_first_line(error)}"
        ) from error
    except aiohttp.ClientError as error:
        raise OutsideError(
            f"the API server {server} gave an answer without sense: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return printable(lines[0]) if lines else type(error).__name__


def printable(text: str) -> str:
    """A server's words on one line, without what would steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST])
