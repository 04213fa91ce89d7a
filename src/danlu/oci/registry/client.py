"""One registry: its manifests and blobs, each verified."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from yarl import URL

from danlu.errors import ChecksumError, OutsideError
from danlu.oci.digest import Digest, is_digest, sha256
from danlu.oci.image import Image, read_image
from danlu.oci.registry.credentials import Credentials, docker_credentials
from danlu.oci.registry.download import Download
from danlu.oci.registry.endpoint import Endpoint
from danlu.oci.registry.transport import Transport
from danlu.oci.registry.upload import Upload
from danlu.oci.types import (
    ACCEPTED_MANIFESTS,
    MAX_DOCUMENT,
    Descriptor,
    Document,
    Index,
    Manifest,
    parse_manifest,
)
from danlu.util.retry import Backoff, retry

__all__ = ["Registry"]

_T = TypeVar("_T")
_BACKOFF = Backoff()


class _Tags(msgspec.Struct):
    tags: list[str] | None = None


class Registry:
    """A registry's client; use as an async context manager.

    What fails for a moment is tried again as ``backoff`` says; what is raised then is a
    :class:`TemporaryError`. Other failures are :class:`OutsideError`, with
    :class:`~danlu.oci.registry.failures.NotFound` for what is not there and
    :class:`ChecksumError` for bytes that are not what their digest says.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        lookup: Callable[[str], Awaitable[Credentials | None]] = docker_credentials,
        connections: int = 8,
        backoff: Backoff = _BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._transport = Transport(
            self.endpoint, lookup=lookup, connections=connections, clock=clock
        )
        self._backoff = backoff
        self._sleep = sleep

    async def __aenter__(self) -> Registry:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    async def _again(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await retry(attempt, backoff=self._backoff, sleep=self._sleep)

    def _path(self, repository: str) -> str:
        return f"{self.endpoint.prefix}/{repository}".strip("/")

    def _scope(self, repository: str, *, push: bool = False, source: str = "") -> str:
        actions = "pull,push" if push else "pull"
        scope = f"repository:{self._path(repository)}:{actions}"
        return f"{scope} repository:{self._path(source)}:pull" if source else scope

    async def ping(self) -> None:
        """Make sure that a registry answers, whether it lets us in or not."""
        await self._again(self._transport.base)

    async def manifest(self, repository: str, target: str) -> Document[Manifest] | Document[Index]:
        """The manifest or index of a tag or digest."""
        raw, media_type = await self._again(lambda: self._get_manifest(repository, target))
        return parse_manifest(raw, media_type)

    async def _get_manifest(self, repository: str, target: str) -> tuple[bytes, str]:
        name = _named(repository, target)
        async with self._transport.request(
            "GET",
            f"{self._path(repository)}/manifests/{target}",
            scope=self._scope(repository),
            what=f"image {name}",
            headers={"Accept": ", ".join(ACCEPTED_MANIFESTS)},
        ) as response:
            raw = bytearray()
            async for chunk in response.content.iter_any():
                raw += chunk
                if len(raw) > MAX_DOCUMENT:
                    raise OutsideError(f"the manifest of {name} is bigger than any should be")
            said = response.headers.get("Docker-Content-Digest", "")
            expected = target if is_digest(target) else said
            if is_digest(expected) and sha256(bytes(raw)) != expected:
                raise ChecksumError(
                    f"the manifest of {name} came as {sha256(bytes(raw))}, not as {expected}",
                    hint="the registry, or something between, is broken or hostile",
                )
            return bytes(raw), response.headers.get("Content-Type", "")

    async def image(self, repository: str, manifest: Manifest) -> Image:
        """The image that a manifest describes, by its config."""
        config = manifest.config
        if config.size > MAX_DOCUMENT:
            raise OutsideError(f"the config of {repository} has {config.size} bytes")
        pieces: list[bytes] = []
        await self.blob(repository, config, pieces.append)
        image = read_image(b"".join(pieces))
        if len(image.diff_ids) != len(manifest.layers):
            raise OutsideError(f"manifest and config of {repository} name different layers")
        return image

    async def blob(
        self,
        repository: str,
        descriptor: Descriptor,
        write: Callable[[bytes], object],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Pass a blob's bytes to ``write``, in threads; a broken transfer goes on where it ended.

        ``progress`` is called with the number of further bytes. All bytes have been written when
        :class:`ChecksumError` is raised: whoever keeps them must drop them then.
        """
        download = Download(
            self._transport, self._path(repository), descriptor, write, progress or _ignore
        )
        while not await self._again(lambda: download.go_on(self._scope(repository))):
            pass
        download.verify()

    async def has_blob(self, repository: str, digest: Digest, *, push: bool = False) -> bool:
        """Whether the repository has a blob; ``push`` asks for the permission needed later."""
        return await self._again(lambda: self._head_blob(repository, digest, push))

    async def _head_blob(self, repository: str, digest: Digest, push: bool) -> bool:
        async with self._transport.request(
            "HEAD",
            f"{self._path(repository)}/blobs/{digest}",
            scope=self._scope(repository, push=push),
            what=f"repository {repository}",
            ok=(200, 404),
        ) as response:
            return response.status == 200

    async def mount(self, repository: str, digest: Digest, source: str) -> bool:
        """Have a blob of the repository ``source`` in ``repository`` too; whether that worked."""
        return await self._again(lambda: self._mount(repository, digest, source))

    async def _mount(self, repository: str, digest: Digest, source: str) -> bool:
        base = await self._transport.base()
        url = base.joinpath("v2", f"{self._path(repository)}/blobs/uploads/", encoded=True)
        scope = self._scope(repository, push=True, source=source)
        async with self._transport.request(
            "POST",
            url.with_query(mount=digest, **{"from": self._path(source)}),
            scope=scope,
            what=f"repository {repository}",
            ok=(201, 202, 401, 403, 404, 405),
        ) as response:
            if response.status == 202 and "Location" in response.headers:
                await self._cancel(response.url.join(URL(response.headers["Location"])), scope)
            return response.status == 201

    async def _cancel(self, location: URL, scope: str) -> None:
        """An upload that nobody wants; registries also forget it by themselves."""
        if self._transport.same_origin(location):
            async with self._transport.request(
                "DELETE", location, scope=scope, what="upload", ok=tuple(range(200, 500))
            ):
                pass

    async def push_blob(
        self,
        repository: str,
        digest: Digest,
        content: Path | bytes,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Send a blob; a broken transfer goes on where it ended, if the registry can that."""
        upload = Upload(
            self._transport,
            self._path(repository),
            digest,
            content,
            scope=self._scope(repository, push=True),
            progress=progress or _ignore,
        )
        while not await self._again(upload.go_on):
            pass

    async def push_manifest(
        self, repository: str, document: Document[Manifest] | Document[Index], tag: str
    ) -> None:
        """Give a manifest to the registry under ``tag``; an empty one means under its digest."""
        target = tag or document.digest
        await self._again(lambda: self._put_manifest(repository, document, target))

    async def _put_manifest(
        self, repository: str, document: Document[Manifest] | Document[Index], target: str
    ) -> None:
        async with self._transport.request(
            "PUT",
            f"{self._path(repository)}/manifests/{target}",
            scope=self._scope(repository, push=True),
            what=f"image {_named(repository, target)}",
            headers={"Content-Type": document.media_type},
            body=document.raw,
            ok=(201, 202, 200),
        ) as response:
            said = response.headers.get("Docker-Content-Digest", "")
            if is_digest(said) and said != document.digest:
                raise ChecksumError(f"the registry took {document.digest} for {said}")

    async def tags(self, repository: str) -> list[str]:
        """The tags of a repository, as far as the registry tells them in one answer."""
        return await self._again(lambda: self._tags(repository))

    async def _tags(self, repository: str) -> list[str]:
        async with self._transport.request(
            "GET",
            f"{self._path(repository)}/tags/list",
            scope=self._scope(repository),
            what=f"repository {repository}",
        ) as response:
            body = await response.content.read(MAX_DOCUMENT)
        try:
            return msgspec.json.decode(body, type=_Tags).tags or []
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise OutsideError(f"the list of tags of {repository} cannot be read") from error


def _ignore(_: int) -> None:
    pass


def _named(repository: str, target: str) -> str:
    return f"{repository}@{target}" if is_digest(target) else f"{repository}:{target}"
