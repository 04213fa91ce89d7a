"""Files from HTTP: downloaded once, verified, and cached by hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import threading
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar

from danlu.errors import ChecksumError, OutsideError, TemporaryError, UsageError
from danlu.util.locks import file_lock
from danlu.util.retry import RetryPolicy, retry
from danlu.util.transfer_rate import require_progress

# aiohttp takes longer to load than everything else here, and a cached file needs no request.
if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_CHUNK_SIZE = 1 << 18

#: Seconds without a byte after which a connection counts as lost.
_READ_TIMEOUT = 60

# A file may take any time.
_RETRY_POLICY = RetryPolicy(attempts=4, initial_delay=2.0, max_delay=8.0, deadline=inf)

#: Transfers at once: servers limit the connections of a client, and the first files can be unpacked
#: while others are still transferred.
_MAX_TRANSFERS = 8
_TRANSFERS: RunVar[anyio.CapacityLimiter] = RunVar("transfers")

#: HTTP statuses of temporary failures.
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}


class FetchedFile(msgspec.Struct, frozen=True):
    """A downloaded file: its path (read-only), SHA-256 (hexadecimal) and size in bytes."""

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
) -> FetchedFile:
    """Return the file at ``url`` (``http``, ``https`` or ``file``), cached in ``cache`` by its
    hash.

    With ``sha256`` (hexadecimal, with or without ``sha256:``), a cached file is not downloaded
    again, and other content raises :class:`ChecksumError`. An interrupted transfer is resumed and
    retried; raises :class:`TemporaryError` if that did not help, and :class:`OutsideError` if the
    server refuses. Uses the proxies and certificates of the environment.
    """
    wanted = (sha256 or "").removeprefix("sha256:").lower()
    if wanted and (kept := _lookup_cache(cache, wanted)) is not None:
        return kept
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return await anyio.to_thread.run_sync(_copy_local_file, path, wanted, cache)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"cannot fetch {redact_url(url)}", hint="use http, https or file")
    if offline:
        raise OutsideError(f"{redact_url(url)} is not cached and cannot be fetched with --offline")
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{hashlib.sha256(url.encode()).hexdigest()}.part"
    # One download per URL at a time, also across processes: the others wait and find it cached.
    with file_lock(partial.with_suffix(".lock")):
        if wanted and (kept := _lookup_cache(cache, wanted)) is not None:
            return kept
        async with _limit_transfers():
            await _download_with_retries(url, partial, os.environ if environ is None else environ)
        # Hashing a large file would hold up all other downloads.
        return await anyio.to_thread.run_sync(_add_to_cache, partial, url, wanted, cache)


def _limit_transfers() -> anyio.CapacityLimiter:
    """Return the limiter of the running event loop."""
    try:
        return _TRANSFERS.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MAX_TRANSFERS)
        _TRANSFERS.set(limiter)
        return limiter


def is_fetched(sha256: str, cache: Path) -> bool:
    """Return whether ``cache`` has the file: :func:`fetch` then needs no request."""
    return _lookup_cache(cache, sha256) is not None


@lru_cache(maxsize=1)
def preload_client() -> threading.Thread:
    """Load the HTTP client in a thread, once; return the thread.

    Loading takes 0.1 to 0.2 s, half of it to read certificates, which blocks no other thread. Call
    this once it is certain that something will be fetched.
    """
    thread = threading.Thread(target=_load_client, name="http-client")
    thread.start()
    return thread


def _load_client() -> None:
    import aiohttp  # noqa: F401

    _find_ssl_context(os.environ)


def redact_url(url: str) -> str:
    """Return ``url`` without credentials, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


def _lookup_cache(cache: Path, sha256: str) -> FetchedFile | None:
    path = cache / "sha256" / sha256
    try:
        return FetchedFile(path, sha256, path.stat().st_size)
    except FileNotFoundError:
        return None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add_to_cache(partial: Path, url: str, wanted: str, cache: Path) -> FetchedFile:
    actual = hash_file(partial)
    if wanted and actual != wanted:
        partial.unlink()
        raise ChecksumError(
            f"checksum mismatch for {redact_url(url)}",
            details=(f"expected sha256:{wanted}", f"received sha256:{actual}"),
            hint="the file at this URL has changed; if that is expected, lock it again",
        )
    target = cache / "sha256" / actual
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, target)
    target.chmod(0o444)
    return FetchedFile(target, actual, target.stat().st_size)


def _copy_local_file(path: Path, wanted: str, cache: Path) -> FetchedFile:
    try:
        partial = cache / f".local-{os.urandom(6).hex()}-{path.name}"
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, partial)
    except OSError as error:
        raise OutsideError(f"cannot read {path}: {error.strerror}") from error
    return _add_to_cache(partial, path.as_uri(), wanted, cache)


async def _download_with_retries(url: str, partial: Path, environ: Mapping[str, str]) -> None:
    await anyio.to_thread.run_sync(preload_client().join)
    import aiohttp

    # No limit on the total time: files may have gigabytes. A stalled connection does time out.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_READ_TIMEOUT)
    connector = aiohttp.TCPConnector(ssl=_find_ssl_context(environ))
    async with aiohttp.ClientSession(
        trust_env=True, timeout=timeout, connector=connector, auto_decompress=False
    ) as session:

        async def transfer() -> None:
            try:
                await _transfer_once(session, url, partial)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _translate_error(url, error) from error

        await retry(transfer, backoff=_RETRY_POLICY)


def _find_ssl_context(environ: Mapping[str, str]) -> ssl.SSLContext | bool:
    """Return what servers are verified with; True for what aiohttp has read when it was loaded.

    Those are the system's certificates, and what OpenSSL's own variables name.
    """
    # The variables that pip, requests and OpenSSL use. They add to the system's certificates.
    bundle = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or ""
    directory = environ.get("SSL_CERT_DIR") or ""
    loaded = (os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
    return True if (bundle, directory) == loaded else _make_ssl_context(bundle, directory)


# Reading the system's certificates takes 20 to 50 ms, and a build may have hundreds of downloads.
@lru_cache(maxsize=4)
def _make_ssl_context(bundle: str, directory: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # OpenSSL itself reads what these variables name.
    if bundle and bundle != os.environ.get("SSL_CERT_FILE") and os.path.isfile(bundle):
        context.load_verify_locations(cafile=bundle)
    if directory and directory != os.environ.get("SSL_CERT_DIR") and os.path.isdir(directory):
        context.load_verify_locations(capath=directory)
    return context


def _is_final(error: BaseException) -> bool:
    import aiohttp

    return isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.InvalidURL)


def _translate_error(url: str, error: BaseException) -> OutsideError:
    kind = OutsideError if _is_final(error) else TemporaryError
    return kind(
        f"cannot fetch {redact_url(url)}: {error or type(error).__name__}",
        hint="check the URL, the network and the proxy settings (HTTPS_PROXY, NO_PROXY)",
    )


async def _transfer_once(session: ClientSession, url: str, partial: Path) -> None:
    """Try once; resume a partial download if the server supports it (RFC 9110, section 14)."""
    have = partial.stat().st_size if partial.exists() else 0
    # Otherwise the server may compress the file, and the bytes would not match the hash.
    headers = {"Accept-Encoding": "identity"}
    validator = partial.with_suffix(".etag")
    if have and validator.exists():
        headers |= {"Range": f"bytes={have}-", "If-Range": validator.read_text()}
    else:
        have = 0
    with require_progress(urlsplit(url).hostname or url, _READ_TIMEOUT) as count:
        async with session.get(url, headers=headers) as response:
            _check_status(url, response)
            resumed = response.status == 206
            if resumed and not _starts_at(response, have):
                # Without the validator the next attempt downloads the whole file.
                validator.unlink(missing_ok=True)
                raise TemporaryError(
                    f"{redact_url(url)}: the server sent a different range than requested"
                )
            _save_validator(response, validator)
            with partial.open("ab" if resumed else "wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK_SIZE):
                    count(len(chunk))
                    file.write(chunk)
    validator.unlink(missing_ok=True)


def _save_validator(response: ClientResponse, validator: Path) -> None:
    # If-Range requires a strong validator (RFC 9110, section 13.1.5).
    etag = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        validator.write_text(etag)
    else:
        validator.unlink(missing_ok=True)


def _starts_at(response: ClientResponse, have: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _check_status(url: str, response: ClientResponse) -> None:
    if response.status in (200, 206):
        return
    reason: Any = f"{response.status} {response.reason or ''}".strip()
    kind = TemporaryError if response.status in _RETRYABLE_STATUSES else OutsideError
    raise kind(f"cannot fetch {redact_url(url)}: the server responded with {reason}")
