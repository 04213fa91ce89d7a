"""Errors of registries: access denied, not found, temporarily unavailable."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.oci.registry.clouds import explain_unknown_host
from danlu.util.decoding import decode_json
from danlu.util.human import format_duration
from danlu.util.sanitize import escape_unprintable

_TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_ERROR_BODY = 1 << 16
_MAX_REASON_LENGTH = 300
_EXPIRED_LOGIN = re.compile(r"token has expired", re.IGNORECASE)
#: What registries say that do not know OCI's manifests, or layers compressed with zstd.
_MEDIA_TYPE = re.compile(r"media ?type", re.IGNORECASE)
#: In the words of Amazon ECR and Artifact Registry.
_IMMUTABLE_TAG = re.compile(r"immutab", re.IGNORECASE)


class RegistryNotFound(OutsideError):
    """The registry does not have it."""


class RegistryTagImmutable(OutsideError):
    """The registry does not let a tag be moved to another image."""


class RegistryAccessDenied(OutsideError):
    """The registry denies access; ``reason`` is ``: MESSAGE`` if it gave one."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class RegistryUnavailable(TemporaryError):
    """The registry cannot answer now; ``retry_after`` is the delay in seconds that it asked for."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class _ErrorDetail(msgspec.Struct):
    code: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct):
    errors: list[_ErrorDetail] = []


def is_expired_login(error: DanluError, method: str) -> bool:
    """Return whether a login may have expired, although the registry did not answer 401.

    Amazon ECR sends 403 ("Your authorization token has expired. Reauthenticate and try again."),
    and its public registry 400. The answer to a HEAD has no text.
    """
    if method == "HEAD":
        return isinstance(error, RegistryAccessDenied)
    return _EXPIRED_LOGIN.search(error.message) is not None


async def response_error(response: aiohttp.ClientResponse, *, host: str, what: str) -> DanluError:
    """Return the error for an unexpected response to a request for ``what``."""
    reason = await _read_error_message(response)
    status = response.status
    if status in _TEMPORARY_STATUSES:
        retry_after = _parse_retry_after(response.headers.get("Retry-After", ""))
        wait = (
            f"in {format_duration(retry_after)}, as the registry asks" if retry_after else "later"
        )
        return RegistryUnavailable(
            f"{host} is unavailable for {what}: HTTP {status}{reason}",
            hint=f"try again {wait}",
            retry_after=retry_after,
        )
    if status in (400, 403, 409) and _IMMUTABLE_TAG.search(reason):
        return RegistryTagImmutable(
            f"{host} does not replace {what}{reason}", hint="push under another tag"
        )
    if status in (401, 403):
        return RegistryAccessDenied(
            f"{host} denied access to {what}{reason}",
            hint=f"check the name; if it is private, log in first: danlu login {host}",
            reason=reason,
        )
    if status == 404:
        return RegistryNotFound(f"{host} has no {what}{reason}", hint="check the name")
    if status == 413:
        return OutsideError(
            f"{host} refuses a request of this size for {what}: HTTP 413{reason}",
            hint="raise the limit of the registry's proxy (nginx: client_max_body_size)",
        )
    hint = ""
    if status in (400, 405, 415) and _MEDIA_TYPE.search(reason):
        hint = "--compression gzip is understood by most registries"
    return OutsideError(f"{host} returned HTTP {status} for {what}{reason}", hint=hint)


async def _read_error_message(response: aiohttp.ClientResponse) -> str:
    """Return ``: MESSAGE`` if the registry sent one (distribution spec, "Error Codes")."""
    try:
        body = await response.content.read(_MAX_ERROR_BODY)
        errors = decode_json(body, _ErrorBody).errors
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, msgspec.ValidationError):
        return ""
    text = "; ".join(detail.message or detail.code for detail in errors)
    if len(text) > _MAX_REASON_LENGTH:
        text = f"{text[:_MAX_REASON_LENGTH]}…"
    return f": {escape_unprintable(text)}" if text else ""


def _parse_retry_after(text: str) -> float:
    """Return the seconds of a Retry-After header, a number or a date (RFC 9110), at most 3600."""
    if text.isascii() and text.isdecimal():
        # A registry must not be able to make a build sleep for days.
        return min(float(text), 3600.0)
    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), 3600.0))
    except (ValueError, OverflowError):
        return 0.0


@contextmanager
def translate_client_errors(host: str) -> Iterator[None]:
    """Raise aiohttp's errors inside the block as danlu's."""
    try:
        yield
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise OutsideError(
            f"cannot verify the certificate of {host}: {_first_line(error)}",
            hint=f'set its CA certificates: ca in [registries."{host}"] of config.toml, '
            "or SSL_CERT_FILE",
        ) from error
    except aiohttp.ClientConnectorError as error:
        is_unknown = isinstance(error, aiohttp.ClientConnectorDNSError)
        raise TemporaryError(
            f"cannot reach {host}: {_first_line(error)}",
            hint=(is_unknown and explain_unknown_host(host))
            or "check the name and your network connection; a mirror of it: mirror in"
            f' [registries."{host}"] of config.toml',
        ) from error
    except aiohttp.ClientPayloadError as error:
        raise TemporaryError(f"{host} closed the connection in the middle of a response") from error
    except aiohttp.ClientConnectionError as error:
        raise TemporaryError(f"{host} closed the connection: {_first_line(error)}") from error
    except TimeoutError as error:
        raise TemporaryError(f"{host} did not respond in time") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise OutsideError(f"{host} sent an invalid response: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return escape_unprintable(lines[0]) if lines else type(error).__name__
