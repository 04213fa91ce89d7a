"""The verbs of Kubernetes' API, on any kind of object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Literal

import msgspec

from danlu.errors import OutsideError
from danlu.kube.access import Access
from danlu.kube.clock import REAL
from danlu.kube.failures import Gone
from danlu.kube.limits import TokenBucket
from danlu.kube.patches import Patch, apply_patch
from danlu.kube.podlogs import LogPiece, read_log
from danlu.kube.resources import Resource
from danlu.kube.transport import Meter, Request, Transport
from danlu.kube.types import Clock, Document, Listing, Page, T, WatchEvent
from danlu.kube.watching import EVERYWHERE, Selection, watch

__all__ = ["EVERYWHERE", "Client", "Deletion", "Selection"]

_CHUNK = 500
_DELETE_SECONDS = 300.0


class Deletion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How to delete (meta/v1 DeleteOptions), and only if ``uid`` and ``version`` are these.

    ``grace`` is in seconds, that of the object where it is None. ``propagation`` is about what the
    object owns: deleted after it, before it, or left.
    """

    grace: int | None = msgspec.field(default=None, name="gracePeriodSeconds")
    propagation: Literal["Background", "Foreground", "Orphan", ""] = msgspec.field(
        default="", name="propagationPolicy"
    )
    uid: str = ""
    version: str = ""

    def body(self) -> bytes:
        """The options as a server reads them."""
        wanted = {"uid": self.uid, "resourceVersion": self.version}
        given = {name: value for name, value in wanted.items() if value}
        options: Document = msgspec.to_builtins(msgspec.structs.replace(self, uid="", version=""))
        if given:
            options["preconditions"] = given
        return msgspec.json.encode(options) if options else b""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_PLAIN = Deletion()
_list_decoder = msgspec.json.Decoder(_List)


class Client:
    """One API server; use as an async context manager.

    At most ``rate`` requests a second are sent, ``burst`` of them at once; 0 for no limit. Every
    refusal is an :class:`~danlu.kube.failures.ApiError` of its own type, and whether to repeat a
    property of that. Nothing is repeated that the server did not ask for. An object is decoded as
    its resource says, and never changed.

    ``manager`` is the name under which fields are owned (server-side apply).
    """

    def __init__(
        self,
        access: Access,
        *,
        rate: float = 0.0,
        burst: int = 1,
        connections: int = 100,
        clock: Clock = REAL,
        meter: Meter | None = None,
        manager: str = "danlu",
    ) -> None:
        limit = TokenBucket(rate, burst, clock=clock) if rate else None
        self.access = access
        self.clock = clock
        self.transport = Transport(
            access, limit=limit, connections=connections, clock=clock, meter=meter, agent=manager
        )
        self.manager = manager

    async def __aenter__(self) -> Client:
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.__aexit__(*error)

    async def get(
        self, resource: Resource[T], name: str, *, namespace: str = "", subresource: str = ""
    ) -> T:
        """One object; raises :class:`NotFound`."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._object(resource, Request(method="GET", path=path, what=f"get {name}"))

    async def page(
        self,
        resource: Resource[T],
        selection: Selection = EVERYWHERE,
        *,
        limit: int = _CHUNK,
        token: str = "",
        version: str = "",
    ) -> Page[T]:
        """A part of a list, ``limit`` objects or fewer; ``token`` is that of the part before.

        Raises :class:`Gone` where the rest is too old to be told. A ``version`` of "0" allows an
        answer from the server's cache, which may be old, and is whole whatever ``limit`` says.
        """
        query = {**selection.query(), "limit": str(limit), "continue": token}
        query["resourceVersion"] = version
        path = resource.path(namespace=selection.namespace)
        what = f"list {resource.label}"
        body = await self.transport.send(Request(method="GET", path=path, query=query, what=what))
        try:
            found = _list_decoder.decode(body)
            items = tuple(resource.decode(bytes(raw)) for raw in found.items or ())
        except msgspec.MsgspecError as error:
            raise OutsideError(f"{what}: the answer cannot be read: {error}") from error
        meta = found.metadata
        return Page(items, meta.resource_version, meta.token, meta.remaining_item_count)

    async def pages(
        self, resource: Resource[T], selection: Selection = EVERYWHERE, *, chunk: int = _CHUNK
    ) -> AsyncIterator[Page[T]]:
        """All parts of a list, all of one version."""
        page = await self.page(resource, selection, limit=chunk)
        yield page
        while page.token:
            page = await self.page(resource, selection, limit=chunk, token=page.token)
            yield page

    async def list(
        self, resource: Resource[T], selection: Selection = EVERYWHERE, *, chunk: int = _CHUNK
    ) -> Listing[T]:
        """A whole list, asked for in parts; in one where it changes too fast for parts."""
        try:
            found = [page async for page in self.pages(resource, selection, chunk=chunk)]
        except Gone:
            found = [await self.page(resource, selection, limit=0)]
        return Listing(tuple(one for page in found for one in page.items), found[-1].version)

    async def create(
        self,
        resource: Resource[T],
        document: Mapping[str, Any],
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """A new object; with ``name`` and ``subresource`` one of those of it (an eviction).

        ``namespace`` is the document's where none is given. Raises :class:`AlreadyExists`,
        :class:`Invalid` with the fields that are wrong, :class:`Forbidden` (quotas too).
        """
        space, shown = _place(document, namespace)
        path = resource.path(namespace=space, name=name, subresource=subresource)
        return await self._object(
            resource,
            Request(
                method="POST",
                path=path,
                query=self._writing(dry_run),
                body=msgspec.json.encode(document),
                what=f"create {name or shown}",
            ),
        )

    async def update(
        self,
        resource: Resource[T],
        document: Mapping[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """An object as ``document`` has it, whole; raises :class:`Conflict` where that is old."""
        space, name = _place(document, "")
        path = resource.path(namespace=space, name=name, subresource=subresource)
        return await self._object(
            resource,
            Request(
                method="PUT",
                path=path,
                query=self._writing(dry_run),
                body=msgspec.json.encode(document),
                what=f"update {name}",
            ),
        )

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
        manager: str = "",
        force: bool = False,
    ) -> T:
        """The object changed; a ``metadata.resourceVersion`` in the patch is a precondition.

        Raises :class:`Conflict` where that is another, :class:`Invalid` for what may not be.
        """
        query = self._writing(dry_run) | {"force": "true" if force else ""}
        if manager:
            query["fieldManager"] = manager
        return await self._object(
            resource,
            Request(
                method="PATCH",
                path=resource.path(namespace=namespace, name=name, subresource=subresource),
                query=query,
                body=patch.body,
                content_type=patch.media_type,
                what=f"patch {name}",
            ),
        )

    async def apply(
        self,
        resource: Resource[T],
        document: Mapping[str, Any],
        *,
        manager: str = "",
        force: bool = False,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """What ``manager`` wants of an object, made where it is not there (server-side apply).

        Raises :class:`ApplyConflict` where a field is another manager's, unless ``force``.
        """
        space, name = _place(document, "")
        return await self.patch(
            resource,
            name,
            apply_patch(document),
            namespace=space,
            subresource=subresource,
            dry_run=dry_run,
            manager=manager or self.manager,
            force=force,
        )

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str = "",
        how: Deletion = _PLAIN,
        dry_run: bool = False,
    ) -> None:
        """Ask for an object's end; finalizers and its grace may delay that.

        Raises :class:`NotFound`, and :class:`Conflict` where it is not the one that ``how`` means.
        """
        path = resource.path(namespace=namespace, name=name)
        await self._delete(path, how, f"delete {name}", {"dryRun": "All" if dry_run else ""})

    async def delete_all(
        self,
        resource: Resource[Any],
        selection: Selection = EVERYWHERE,
        *,
        how: Deletion = _PLAIN,
    ) -> None:
        """Ask for the end of all objects that ``selection`` names."""
        path = resource.path(namespace=selection.namespace)
        await self._delete(path, how, f"delete {resource.label}", selection.query())

    def watch(
        self,
        resource: Resource[T],
        selection: Selection = EVERYWHERE,
        *,
        since: str,
        seconds: float = 300.0,
        bookmarks: bool = True,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """What changes after the version ``since``; see :func:`danlu.kube.watching.watch`."""
        return watch(
            self.transport,
            resource,
            selection,
            since=since,
            seconds=seconds,
            bookmarks=bookmarks,
        )

    def log(
        self,
        pod: str,
        *,
        namespace: str,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        since: int = 0,
    ) -> AsyncGenerator[LogPiece, None]:
        """What a container wrote, line by line; see :func:`danlu.kube.podlogs.read_log`."""
        return read_log(
            self.transport,
            namespace,
            pod,
            container=container,
            follow=follow,
            previous=previous,
            since=since,
        )

    def _writing(self, dry_run: bool) -> dict[str, str]:
        return {"fieldManager": self.manager, "dryRun": "All" if dry_run else ""}

    async def _delete(self, path: str, how: Deletion, what: str, query: Mapping[str, str]) -> None:
        await self.transport.send(
            Request(
                method="DELETE",
                path=path,
                query=query,
                body=how.body(),
                what=what,
                seconds=_DELETE_SECONDS,
            )
        )

    async def _object(self, resource: Resource[T], request: Request) -> T:
        body = await self.transport.send(request)
        try:
            return resource.decode(body)
        except msgspec.MsgspecError as error:
            # The request was carried out: whoever asks must not take this for a refusal.
            raise OutsideError(f"{request.what}: the answer cannot be read: {error}") from error


def _place(document: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}…"
    return namespace or metadata.get("namespace", ""), str(name)
