"""The registry client: manifests and blobs, each verified against its digest."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio
from yarl import URL

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.digest import Digest, is_digest, sha256
from danlu.oci.image import Image, parse_image
from danlu.oci.registry.credentials import CredentialLookup, find_docker_credentials
from danlu.oci.registry.errors import RegistryTagImmutable
from danlu.oci.registry.transfer import BlobDownload, BlobUpload
from danlu.oci.registry.transport import READ_TIMEOUT, RegistryEndpoint, RegistryTransport
from danlu.oci.types import (
    ACCEPTED_MANIFESTS,
    MAX_DOCUMENT_SIZE,
    Descriptor,
    Index,
    Manifest,
    ParsedDocument,
    parse_manifest,
)
from danlu.util.retry import RetryPolicy, retry
from danlu.util.transfer_rate import require_progress

_T = TypeVar("_T")
_BACKOFF = RetryPolicy()


class Registry:
    """A client of one registry; use it as an async context manager.

    Temporary failures are retried according to ``backoff``, those of a blob's transfer according to
    ``transfer_backoff``, and then raised as :class:`TemporaryError`. ``on_retry`` is called with
    each such error and the seconds until the next attempt. After ``read_timeout`` seconds without a
    byte a connection counts as lost. Other failures are :class:`OutsideError`:
    :class:`~danlu.oci.registry.errors.RegistryNotFound` if something does not exist,
    :class:`ChecksumError` if bytes do not match their digest.
    """

    def __init__(
        self,
        endpoint: RegistryEndpoint | str,
        *,
        lookup: CredentialLookup = find_docker_credentials,
        connections: int = 8,
        backoff: RetryPolicy = _BACKOFF,
        transfer_backoff: RetryPolicy | None = None,
        on_retry: Callable[[TemporaryError, float], None] | None = None,
        read_timeout: float = READ_TIMEOUT,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = RegistryEndpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._transport = RegistryTransport(
            self.endpoint,
            lookup=lookup,
            connections=connections,
            read_timeout=read_timeout,
            clock=clock,
        )
        self._backoff = backoff
        self._transfer_backoff = transfer_backoff or backoff
        self._on_retry = on_retry
        self._sleep = sleep

    async def __aenter__(self) -> Registry:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    async def _with_retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        async def attempt_in_time() -> _T:
            # Answers are small.
            with require_progress(self._transport.host, self._transport.read_timeout):
                return await attempt()
            raise AssertionError("a cancelled attempt raises")

        return await retry(
            attempt_in_time, backoff=self._backoff, on_retry=self._on_retry, sleep=self._sleep
        )

    async def _with_transfer_retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await retry(
            attempt, backoff=self._transfer_backoff, on_retry=self._on_retry, sleep=self._sleep
        )

    def repository_path(self, repository: str) -> str:
        """Return the path of a repository on the registry, with the endpoint's prefix."""
        return f"{self.endpoint.prefix}/{repository}".strip("/")

    def _token_scope(self, repository: str, *, push: bool = False, source: str = "") -> str:
        actions = "pull,push" if push else "pull"
        scope = f"repository:{self.repository_path(repository)}:{actions}"
        return f"{scope} repository:{self.repository_path(source)}:pull" if source else scope

    async def ping(self) -> None:
        """Make sure that a registry answers, whether it lets us in or not."""
        await self._with_retry(self._transport.base_url)

    async def check_login(self) -> bool:
        """Send the credentials to the registry; return whether it asked for any.

        Raises :class:`~danlu.oci.registry.errors.RegistryAccessDenied` if it rejects them.
        """
        return await self._with_retry(self._try_login)

    async def _try_login(self) -> bool:
        # The base of the API, for which a registry or its token server asks for no repository
        # (distribution, docs/spec/api.md, "API Version Check").
        async with self._transport.request("GET", "", scope="", what="its API") as response:
            return "Authorization" in response.request_info.headers

    async def get_manifest(
        self, repository: str, target: str
    ) -> ParsedDocument[Manifest] | ParsedDocument[Index]:
        """Return the manifest or index with a tag or digest."""
        raw, media_type = await self._with_retry(lambda: self._fetch_manifest(repository, target))
        return parse_manifest(raw, media_type)

    async def _fetch_manifest(self, repository: str, target: str) -> tuple[bytes, str]:
        name = _image_name(repository, target)
        async with self._transport.request(
            "GET",
            f"{self.repository_path(repository)}/manifests/{target}",
            scope=self._token_scope(repository),
            what=f"image {name}",
            headers={"Accept": ", ".join(ACCEPTED_MANIFESTS)},
        ) as response:
            raw = bytearray()
            # The size is unknown in advance, so reading stops at the limit.
            async for chunk in response.content.iter_any():
                raw += chunk
                if len(raw) > MAX_DOCUMENT_SIZE:
                    raise OutsideError(f"the manifest of {name} exceeds {MAX_DOCUMENT_SIZE} bytes")
            declared = response.headers.get("Docker-Content-Digest", "")
            # A digest that we asked for is authoritative; the header is only the registry's claim.
            expected = target if is_digest(target) else declared
            if is_digest(expected) and (digest := sha256(bytes(raw))) != expected:
                raise ChecksumError(
                    f"the manifest of {name} has the digest {digest} instead of {expected}",
                    hint="the registry, or a proxy in between, is broken or malicious",
                )
            return bytes(raw), response.headers.get("Content-Type", "")

    async def get_image(self, repository: str, manifest: Manifest) -> Image:
        """Return the image of a manifest, from its config."""
        config = manifest.config
        if config.size > MAX_DOCUMENT_SIZE:
            raise OutsideError(f"the config of {repository} exceeds {MAX_DOCUMENT_SIZE} bytes")
        pieces: list[bytes] = []
        await self.download_blob(repository, config, pieces.append)
        image = parse_image(b"".join(pieces))
        # Blobs and diff IDs belong together by their position (image-spec, config.md, rootfs).
        if len(image.diff_ids) != len(manifest.layers):
            raise OutsideError(f"manifest and config of {repository} list different layers")
        return image

    async def download_blob(
        self,
        repository: str,
        descriptor: Descriptor,
        write: Callable[[bytes], object],
        *,
        received: BinaryIO | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Pass a blob's bytes to ``write``, in worker threads, resuming after broken connections.

        The bytes in ``received``, the beginning of the blob from an earlier download, are neither
        downloaded nor written again, but verified with the rest. ``progress`` is called with each
        number of further bytes. :class:`ChecksumError` is raised after all bytes have been written:
        the caller must discard them then.
        """
        download = BlobDownload(
            self._transport,
            self.repository_path(repository),
            descriptor,
            write,
            scope=self._token_scope(repository),
            progress=progress or _ignore_progress,
        )
        if received is not None:
            await download.hash_beginning(received)
        await download.run(self._with_transfer_retry)
        download.verify()

    async def has_blob(self, repository: str, digest: Digest, *, push: bool = False) -> bool:
        """Return whether the repository has a blob; ``push`` requests push permission as well."""
        return await self._with_retry(lambda: self._head_blob(repository, digest, push))

    async def _head_blob(self, repository: str, digest: Digest, push: bool) -> bool:
        async with self._transport.request(
            "HEAD",
            f"{self.repository_path(repository)}/blobs/{digest}",
            scope=self._token_scope(repository, push=push),
            what=f"repository {repository}",
            ok=(200, 404),
        ) as response:
            return response.status == 200

    async def mount_blob(self, repository: str, digest: Digest, source: str) -> bool:
        """Mount a blob of the repository ``source``; return whether the registry did that.

        A registry that fails to do it counts as one that cannot: the blob can still be sent.
        """
        try:
            return await self._try_mount(repository, digest, source)
        except OutsideError:
            return False

    async def _try_mount(self, repository: str, digest: Digest, source: str) -> bool:
        base = await self._transport.base_url()
        url = base.joinpath(
            "v2", f"{self.repository_path(repository)}/blobs/uploads/", encoded=True
        )
        scope = self._token_scope(repository, push=True, source=source)
        async with self._transport.request(
            "POST",
            url.with_query(mount=digest, **{"from": self.repository_path(source)}),
            scope=scope,
            what=f"repository {repository}",
            # A registry that cannot mount starts an upload (202) or denies the request.
            ok=(201, 202, 401, 403, 404, 405),
        ) as response:
            if response.status == 202 and "Location" in response.headers:
                await self._cancel_upload(
                    response.url.join(URL(response.headers["Location"])), scope
                )
            return response.status == 201

    async def _cancel_upload(self, location: URL, scope: str) -> None:
        """Cancel an upload that is not needed. Registries also expire them."""
        if self._transport.is_same_origin(location):
            async with self._transport.request(
                "DELETE", location, scope=scope, what="upload", ok=tuple(range(200, 500))
            ):
                pass

    async def check_push(self, repository: str) -> None:
        """Start an upload and cancel it, which needs all that a push needs.

        Raises :class:`~danlu.oci.registry.errors.RegistryNotFound` if the repository must be
        created first, and :class:`~danlu.oci.registry.errors.RegistryAccessDenied`.
        """
        await self._with_retry(lambda: self._try_upload(repository))

    async def _try_upload(self, repository: str) -> None:
        scope = self._token_scope(repository, push=True)
        async with self._transport.request(
            "POST",
            f"{self.repository_path(repository)}/blobs/uploads/",
            scope=scope,
            what=f"repository {repository}",
            headers={"Content-Length": "0"},
            ok=(202,),
        ) as response:
            location = URL(response.headers.get("Location", ""), encoded=True)
            # The registry expires it, too.
            with suppress(OutsideError):
                await self._cancel_upload(response.url.join(location), scope)

    async def push_blob(
        self,
        repository: str,
        digest: Digest,
        content: Path | bytes,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Upload a blob, resuming after broken connections if the registry supports that."""
        upload = BlobUpload(
            self._transport,
            self.repository_path(repository),
            digest,
            content,
            scope=self._token_scope(repository, push=True),
            progress=progress or _ignore_progress,
        )
        await upload.run(self._with_transfer_retry)

    async def push_manifest(
        self, repository: str, document: ParsedDocument[Manifest] | ParsedDocument[Index], tag: str
    ) -> None:
        """Store a manifest under ``tag``, or under its digest if ``tag`` is empty."""
        target = tag or document.digest
        try:
            await self._with_retry(lambda: self._put_manifest(repository, document, target))
        except RegistryTagImmutable:
            # Some also refuse to push what is there already.
            raw, _ = await self._with_retry(lambda: self._fetch_manifest(repository, target))
            if raw != document.raw:
                raise

    async def _put_manifest(
        self,
        repository: str,
        document: ParsedDocument[Manifest] | ParsedDocument[Index],
        target: str,
    ) -> None:
        async with self._transport.request(
            "PUT",
            f"{self.repository_path(repository)}/manifests/{target}",
            scope=self._token_scope(repository, push=True),
            what=f"image {_image_name(repository, target)}",
            headers={"Content-Type": document.media_type},
            body=document.raw,
            ok=(201, 202, 200),
        ) as response:
            declared = response.headers.get("Docker-Content-Digest", "")
            if is_digest(declared) and declared != document.digest:
                raise ChecksumError(f"the registry stored {document.digest} as {declared}")


def _ignore_progress(_: int) -> None:
    pass


def _image_name(repository: str, target: str) -> str:
    return f"{repository}@{target}" if is_digest(target) else f"{repository}:{target}"
