"""The verbs of the Kubernetes API, on any resource."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from danlu.errors import OutsideError
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import AlreadyExists, Gone, NotFound
from danlu.kube.patch import Patch, apply_patch, merge_patch
from danlu.kube.pod_logs import PodLogLine, read_log
from danlu.kube.priorities import DEFAULT_PRIORITY
from danlu.kube.ratelimit import TokenBucket
from danlu.kube.resources import Resource
from danlu.kube.transport import ApiRequest, RequestObserver, Transport
from danlu.kube.types import ListPage, Manifest, ObjectList, T, WatchEvent
from danlu.kube.watch import ALL_OBJECTS, ListOptions, watch_objects

# As client-go's pager.
_PAGE_SIZE = 500
_DELETE_TIMEOUT = 300.0


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How to delete an object (meta/v1 DeleteOptions).

    Args:
        grace: The grace period in seconds, None for the object's own.
        propagation: What happens to dependents: deleted after the owner, before it, or kept.
        uid: Delete the object only if it has this uid.
        version: Delete the object only if it has this resource version.
    """

    grace: int | None = msgspec.field(default=None, name="gracePeriodSeconds")
    propagation: Literal["Background", "Foreground", "Orphan", ""] = msgspec.field(
        default="", name="propagationPolicy"
    )
    uid: str = ""
    version: str = ""

    def encode(self) -> bytes:
        """Return the options as a request body; empty if they are all defaults."""
        expected = {"uid": self.uid, "resourceVersion": self.version}
        preconditions = {name: value for name, value in expected.items() if value}
        options: Manifest = msgspec.to_builtins(msgspec.structs.replace(self, uid="", version=""))
        if preconditions:
            options["preconditions"] = preconditions
        return msgspec.json.encode(options) if options else b""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class _RawList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_DEFAULT_DELETE_OPTIONS = DeleteOptions()
_list_decoder = msgspec.json.Decoder(_RawList)


class Client:
    """A client of one API server; use it as an async context manager.

    Each kind of error is a subclass of :class:`~danlu.kube.errors.ApiError`; how to retry is a
    property of the type. Requests are retried only if the server asks for it (``Retry-After``).
    Objects are decoded as the model of their resource.

    Args:
        rate: The maximum of requests per second, 0 for no limit. Requests of a low priority wait
            for others, but have a reserved share.
        burst: How many requests may be sent at once.
        manager: The name under which the server records what this client writes.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        rate: float = 0.0,
        burst: int = 1,
        connections: int = 100,
        clock: Clock = REAL_CLOCK,
        meter: RequestObserver | None = None,
        manager: str = "danlu",
    ) -> None:
        limit = TokenBucket(rate, burst, clock=clock) if rate else None
        self.config = config
        self.clock = clock
        self.transport = Transport(
            config, limit=limit, connections=connections, clock=clock, meter=meter, agent=manager
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
        """Return one object; raises :class:`NotFound`."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        request = ApiRequest(method="GET", path=path, what=f"get {name}")
        return await self._request_object(resource, request)

    async def serves_group(self, group: str) -> bool:
        """Return whether the API server has kinds of an API group."""
        try:
            path = f"/apis/{group}"
            await self.transport.send(ApiRequest(method="GET", path=path, what=f"find {group}"))
        except NotFound:
            return False
        return True

    async def list_page(
        self,
        resource: Resource[T],
        options: ListOptions = ALL_OBJECTS,
        *,
        limit: int = _PAGE_SIZE,
        token: str = "",
        version: str = "",
    ) -> ListPage[T]:
        """Return one page of a list.

        Args:
            limit: The page size, 0 for no limit.
            token: The ``token`` of the previous page.
            version: "0" allows an answer from the server's cache, which may be stale and ignores
                ``limit``.

        Raises:
            Gone: The token has expired.
        """
        query = {**options.query(), "limit": str(limit), "continue": token}
        query["resourceVersion"] = version
        path = resource.path(namespace=options.namespace)
        what = f"list {resource.display_name}"
        request = ApiRequest(method="GET", path=path, query=query, what=what)
        body = await self.transport.send(request)
        try:
            result = _list_decoder.decode(body)
            items = tuple(resource.decode(bytes(raw)) for raw in result.items or ())
        except msgspec.MsgspecError as error:
            raise OutsideError(f"{what}: invalid response: {error}") from error
        meta = result.metadata
        return ListPage(items, meta.resource_version, meta.token, meta.remaining_item_count)

    async def list_pages(
        self, resource: Resource[T], options: ListOptions = ALL_OBJECTS, *, chunk: int = _PAGE_SIZE
    ) -> AsyncIterator[ListPage[T]]:
        """Yield all pages of a list, all as of the same version."""
        page = await self.list_page(resource, options, limit=chunk)
        yield page
        while page.token:
            page = await self.list_page(resource, options, limit=chunk, token=page.token)
            yield page

    async def list(
        self, resource: Resource[T], options: ListOptions = ALL_OBJECTS, *, chunk: int = _PAGE_SIZE
    ) -> ObjectList[T]:
        """Return a complete list, requested in pages, or at once if the pages expire meanwhile."""
        try:
            pages = [page async for page in self.list_pages(resource, options, chunk=chunk)]
        except Gone:
            pages = [await self.list_page(resource, options, limit=0)]
        return ObjectList(tuple(item for page in pages for item in page.items), pages[-1].version)

    async def create(
        self,
        resource: Resource[T],
        manifest: Mapping[str, Any],
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        priority: int = DEFAULT_PRIORITY,
        strict: bool = False,
    ) -> T:
        """Create an object, or with ``name`` and ``subresource`` a subresource (an eviction).

        ``namespace`` defaults to that of the manifest. With ``strict``, fields that the server does
        not know are an error (:class:`BadRequest`); otherwise it drops them.

        Raises:
            AlreadyExists: An object of that name exists.
            Invalid: The object fails validation; the causes name the fields.
            Forbidden: Not allowed, or a quota is exceeded.
        """
        target, shown = _namespace_and_name(manifest, namespace)
        request = ApiRequest(
            method="POST",
            path=resource.path(namespace=target, name=name, subresource=subresource),
            query={**self._write_query(), "fieldValidation": "Strict" if strict else ""},
            body=msgspec.json.encode(manifest),
            what=f"create {name or shown}",
            priority=priority,
        )
        return await self._request_object(resource, request)

    async def update(
        self,
        resource: Resource[T],
        manifest: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> T:
        """Replace an object; raises :class:`Conflict` if it changed since it was read."""
        namespace, name = _namespace_and_name(manifest, "")
        request = ApiRequest(
            method="PUT",
            path=resource.path(namespace=namespace, name=name, subresource=subresource),
            query=self._write_query(),
            body=msgspec.json.encode(manifest),
            what=f"update {name}",
        )
        return await self._request_object(resource, request)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Patch an object; ``metadata.resourceVersion`` in the patch is a precondition.

        Raises:
            Conflict: The object has another version.
            Invalid: The result fails validation, or a ``test`` of a JSON patch fails.
        """
        request = ApiRequest(
            method="PATCH",
            path=resource.path(namespace=namespace, name=name, subresource=subresource),
            query=self._write_query(),
            body=patch.body,
            content_type=patch.media_type,
            what=f"patch {name}",
        )
        return await self._request_object(resource, request)

    async def create_or_patch(self, resource: Resource[T], manifest: Mapping[str, Any]) -> T:
        """Create an object, or merge the manifest into the one of that name.

        What the manifest leaves out is kept.
        """
        try:
            return await self.create(resource, manifest)
        except AlreadyExists:
            namespace, name = _namespace_and_name(manifest, "")
            return await self.patch(resource, name, merge_patch(manifest), namespace=namespace)

    async def apply(
        self, resource: Resource[T], manifest: Mapping[str, Any], *, dry_run: bool = False
    ) -> T:
        """Create an object, or change it to what the manifest says (server-side apply).

        Fields that this client's manager applied before and that the manifest lacks are removed;
        those of others are kept, and taken over if the manifest has them. With ``dry_run`` the
        server only checks it.

        Raises:
            Invalid: The result fails validation; the causes name the fields.
            BadRequest: The manifest has fields that the server does not know.
        """
        namespace, name = _namespace_and_name(manifest, "")
        patch = apply_patch(manifest)
        request = ApiRequest(
            method="PATCH",
            path=resource.path(namespace=namespace, name=name),
            query={
                **self._write_query(),
                "force": "true",
                "fieldValidation": "Strict",
                "dryRun": "All" if dry_run else "",
            },
            body=patch.body,
            content_type=patch.media_type,
            what=f"apply {name}",
        )
        return await self._request_object(resource, request)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str = "",
        options: DeleteOptions = _DEFAULT_DELETE_OPTIONS,
    ) -> None:
        """Delete an object; finalizers and the grace period may delay its removal.

        Raises:
            NotFound: The object does not exist.
            Conflict: The preconditions of ``options`` are not met.
        """
        path = resource.path(namespace=namespace, name=name)
        await self._send_delete(path, options, f"delete {name}")

    async def delete_all(
        self,
        resource: Resource[Any],
        selection: ListOptions = ALL_OBJECTS,
        *,
        options: DeleteOptions = _DEFAULT_DELETE_OPTIONS,
    ) -> None:
        """Delete all objects that ``selection`` selects."""
        path = resource.path(namespace=selection.namespace)
        what = f"delete {resource.display_name}"
        await self._send_delete(path, options, what, selection.query())

    def watch(
        self,
        resource: Resource[T],
        options: ListOptions = ALL_OBJECTS,
        *,
        since: str,
        seconds: float = 300.0,
        bookmarks: bool = True,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield the changes after the version ``since``; see :func:`watch_objects`."""
        return watch_objects(
            self.transport, resource, options, since=since, seconds=seconds, bookmarks=bookmarks
        )

    def read_log(
        self,
        pod: str,
        *,
        namespace: str,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        since: int = 0,
        tail: int | None = None,
    ) -> AsyncGenerator[PodLogLine, None]:
        """Yield the lines of a container's log; see :func:`danlu.kube.pod_logs.read_log`."""
        return read_log(
            self.transport,
            namespace,
            pod,
            container=container,
            follow=follow,
            previous=previous,
            since=since,
            tail=tail,
        )

    def _write_query(self) -> dict[str, str]:
        return {"fieldManager": self.manager}

    async def _send_delete(
        self,
        path: str,
        options: DeleteOptions,
        what: str,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        await self.transport.send(
            ApiRequest(
                method="DELETE",
                path=path,
                query=query,
                body=options.encode(),
                what=what,
                seconds=_DELETE_TIMEOUT,
            )
        )

    async def _request_object(self, resource: Resource[T], request: ApiRequest) -> T:
        body = await self.transport.send(request)
        try:
            return resource.decode(body)
        except msgspec.MsgspecError as error:
            # The request succeeded, so this must not look like an ApiError to the caller.
            raise OutsideError(f"{request.what}: invalid response: {error}") from error


def _namespace_and_name(manifest: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    metadata = manifest.get("metadata") or {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}…"
    return namespace or metadata.get("namespace", ""), str(name)
