"""What can go wrong with a registry, as our errors: refusals, absences, moments of weakness."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.oci.text import printable

__all__ = ["Later", "NotFound", "failure", "translated"]

_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_BODY = 1 << 16


class NotFound(OutsideError):
    """The registry does not have it."""


class Later(TemporaryError):
    """The registry cannot now; ``retry_after`` is the seconds that it asked for."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct):
    errors: list[_Error] = []


async def failure(response: aiohttp.ClientResponse, *, host: str, what: str) -> DanluError:
    """The error for an answer that is not what was hoped for; ``what`` was asked for."""
    reason = await _reason(response)
    status = response.status
    if status in _LATER:
        return Later(
            f"{host} cannot answer for {what} now ({status}{reason})",
            hint="try again later",
            retry_after=_retry_after(response.headers.get("Retry-After", "")),
        )
    if status in (401, 403):
        return OutsideError(
            f"{host} refuses access to {what}{reason}",
            hint=f"is the name right? if it needs an account: docker login {host}",
        )
    if status == 404:
        return NotFound(f"{host} has no {what}{reason}", hint="is the name right?")
    return OutsideError(f"{host} answered {status} for {what}{reason}")


async def _reason(response: aiohttp.ClientResponse) -> str:
    """`: MESSAGE`, where the registry said one (distribution spec, "Error Codes")."""
    try:
        body = await response.content.read(_MAX_BODY)
        errors = msgspec.json.decode(body, type=_Errors).errors
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, msgspec.ValidationError):
        return ""
    text = "; ".join(one.message or one.code for one in errors)
    return f": {printable(text)}" if text else ""


def _retry_after(text: str) -> float:
    """Seconds; RFC 9110 allows a number or a date."""
    if text.isdigit():
        return min(float(text), 3600.0)
    try:
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), 3600.0))
    except ValueError:
        return 0.0


@contextmanager
def translated(host: str) -> Iterator[None]:
    """Turn what aiohttp raises into our errors."""
    try:
        yield
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise OutsideError(
            f"{host} cannot be trusted: {_first_line(error)}",
            hint=f'name its certificates: ca in [registries."{host}"] of config.toml, '
            "or SSL_CERT_FILE",
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise TemporaryError(
            f"cannot reach {host}: {_first_line(error)}",
            hint="is the name right, and is the network there?",
        ) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise TemporaryError(f"{host} ended the connection: {_first_line(error)}") from error
    except TimeoutError as error:
        raise TemporaryError(f"{host} took too long to answer") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise OutsideError(f"{host} gave an answer without sense: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return printable(lines[0]) if lines else type(error).__name__
