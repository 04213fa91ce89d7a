"""Files from HTTP: fetched once, verified, kept by hash."""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from danlu.errors import ChecksumError, OutsideError, TemporaryError, UsageError
from danlu.util.locks import file_lock

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["Fetched", "fetch"]

_CHUNK = 1 << 18
_TRIES = 4
_PAUSE = 0.5

#: Answers that say "not now".
_LATER = {408, 425, 429, 500, 502, 503, 504}


class Fetched(msgspec.Struct, frozen=True):
    """A file that was fetched: where it lies (read only), its sha256 (hexadecimal), its bytes."""

    path: Path
    sha256: str
    size: int


async def fetch(
    url: str,
    sha256: str | None,
    *,
    cache: Path,
    offline: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Fetched:
    """The file at ``url`` (``http``, ``https``, ``file``), kept in ``cache`` by its hash.

    With ``sha256`` (hexadecimal, ``sha256:`` allowed) a file that is kept is not asked for again,
    and other bytes raise :class:`ChecksumError`. A broken transfer is resumed and tried again;
    raises :class:`TemporaryError` when that did not help, :class:`OutsideError` for refusals.
    Proxies and certificates are those of the environment.
    """
    wanted = (sha256 or "").removeprefix("sha256:").lower()
    if wanted and (kept := _kept(cache, wanted)) is not None:
        return kept
    parts = urlsplit(url)
    if parts.scheme == "file":
        from urllib.parse import unquote

        return _keep_local(Path(unquote(parts.path)), wanted, cache)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"cannot fetch {shown(url)}", hint="http, https and file are understood")
    if offline:
        raise OutsideError(f"{shown(url)} is not in the cache, and --offline forbids to fetch it")
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{hashlib.sha256(url.encode()).hexdigest()}.part"
    with file_lock(partial.with_suffix(".lock")):
        if wanted and (kept := _kept(cache, wanted)) is not None:
            return kept
        await _download(url, partial, os.environ if environ is None else environ)
        return _keep(partial, url, wanted, cache)


def shown(url: str) -> str:
    """``url`` without its credentials, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


def _kept(cache: Path, sha256: str) -> Fetched | None:
    path = cache / "sha256" / sha256
    try:
        return Fetched(path, sha256, path.stat().st_size)
    except FileNotFoundError:
        return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keep(partial: Path, url: str, wanted: str, cache: Path) -> Fetched:
    found = _hash(partial)
    if wanted and found != wanted:
        partial.unlink()
        raise ChecksumError(
            f"{shown(url)} is not what was expected",
            details=(f"expected sha256:{wanted}", f"received sha256:{found}"),
            hint="the file at this address has changed; if that is right, lock it again",
        )
    target = cache / "sha256" / found
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, target)
    target.chmod(0o444)
    return Fetched(target, found, target.stat().st_size)


def _keep_local(path: Path, wanted: str, cache: Path) -> Fetched:
    import shutil

    try:
        partial = cache / f".local-{os.getpid()}-{path.name}"
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, partial)
    except OSError as error:
        raise OutsideError(f"{path} cannot be read: {error.strerror}") from error
    return _keep(partial, path.as_uri(), wanted, cache)


async def _download(url: str, partial: Path, environ: Mapping[str, str]) -> None:
    import aiohttp
    import anyio

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    connector = aiohttp.TCPConnector(ssl=_trust(environ))
    async with aiohttp.ClientSession(
        trust_env=True, timeout=timeout, connector=connector, auto_decompress=False
    ) as session:
        for attempt in range(1, _TRIES + 1):
            try:
                await _transfer(session, url, partial)
                return
            except (aiohttp.ClientError, TimeoutError, TemporaryError) as error:
                if _final(error) or attempt == _TRIES:
                    raise _translated(url, error) from error
            await anyio.sleep(_PAUSE * 2**attempt)


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    bundle = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or None
    directory = environ.get("SSL_CERT_DIR") or None
    context = ssl.create_default_context()
    if bundle and os.path.isfile(bundle):
        context.load_verify_locations(cafile=bundle)
    if directory and os.path.isdir(directory):
        context.load_verify_locations(capath=directory)
    return context


def _final(error: BaseException) -> bool:
    import aiohttp

    return isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.InvalidURL)


def _translated(url: str, error: BaseException) -> OutsideError:
    if isinstance(error, OutsideError):
        return error
    kind = OutsideError if _final(error) else TemporaryError
    return kind(f"{shown(url)} could not be fetched: {error or type(error).__name__}")


async def _transfer(session: ClientSession, url: str, partial: Path) -> None:
    """One try; goes on where the last one stopped if the server can (RFC 9110, section 14)."""
    have = partial.stat().st_size if partial.exists() else 0
    # Without this a server may compress, and the bytes would not be those of the hash.
    headers = {"Accept-Encoding": "identity"}
    validator = partial.with_suffix(".etag")
    if have and validator.exists():
        headers |= {"Range": f"bytes={have}-", "If-Range": validator.read_text()}
    else:
        have = 0
    async with session.get(url, headers=headers) as response:
        _check(url, response)
        resumed = response.status == 206 and _starts_at(response, have)
        _note_validator(response, validator)
        with partial.open("ab" if resumed else "wb") as file:
            async for chunk in response.content.iter_chunked(_CHUNK):
                file.write(chunk)
    validator.unlink(missing_ok=True)


def _note_validator(response: ClientResponse, validator: Path) -> None:
    etag = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        validator.write_text(etag)
    else:
        validator.unlink(missing_ok=True)


def _starts_at(response: ClientResponse, have: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _check(url: str, response: ClientResponse) -> None:
    if response.status in (200, 206):
        return
    reason: Any = f"{response.status} {response.reason or ''}".strip()
    kind = TemporaryError if response.status in _LATER else OutsideError
    raise kind(f"{shown(url)} could not be fetched: the server answered {reason}")
