"""HTTP handlers: each verb of the Kubernetes API on the fake's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tests.fakes.kubernetes.cluster import FakeCluster, WriteOptions
from tests.fakes.kubernetes.container_logs import ContainerRun, LogUnavailable
from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.log_server import container_run, serve_log
from tests.fakes.kubernetes.scale import apply_scale, render_scale
from tests.fakes.kubernetes.selectors import parse_selectors
from tests.fakes.kubernetes.status_errors import StatusError, bad_request, no_such_path
from tests.fakes.kubernetes.watches import WatchStream, stream_lines

__all__ = ["MAX_BODY", "RequestHandlers", "RequestTarget", "json_response", "request_verb"]

Object = dict[str, Any]
MAX_BODY = 3 << 20
_WATCH_SECONDS = 1800.0
_BY_METHOD = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The object or collection that a path identifies."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """The plural, with the subresource if there is one."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


class RequestHandlers:
    """The verbs on the objects of ``cluster``; ``watches`` are the open ones."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.watches: set[WatchStream] = set()

    def parse_target(self, path: str) -> RequestTarget:
        """Return what ``path`` identifies; raise 404 for an unknown path."""
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) >= 3:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) >= 4:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise no_such_path(served=True)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        kind = self.cluster.kind(group, version, rest[0])
        name, subresource = [*rest[1:3], "", ""][:2]
        if subresource and subresource not in (*kind.subresources, *_pod_subresources(kind)):
            raise no_such_path(served=True)
        return RequestTarget(kind, namespace, name, subresource)

    async def handle(
        self, request: web.Request, target: RequestTarget, verb: str
    ) -> web.StreamResponse:
        """Return the response to a request; raises StatusError."""
        if target.subresource == "scale":
            return await self._handle_scale(request, target, verb)
        if target.subresource == "binding":
            return await self._handle_binding(request, target)
        if target.subresource == "log":
            return await self._handle_log(request, target)
        match verb:
            case "get":
                result = self.cluster.get(target.kind, target.namespace, target.name)
                return json_response(result)
            case "list":
                return self._handle_list(request, target)
            case "watch":
                return await self._handle_watch(request, target)
            case "create":
                document = await _read_body(request)
                wish = _write_options(request, target)
                made = self.cluster.create(target.kind, target.namespace, document, wish)
                return json_response(made, 201)
            case "update":
                document = await _read_body(request)
                return json_response(
                    self._handle_update(target, document, _write_options(request, target))
                )
            case "patch":
                return await self._handle_patch(request, target)
            case "delete":
                return await self._handle_delete(request, target)
            case "deletecollection":
                return await self._handle_delete_collection(request, target)
        raise StatusError(405, "MethodNotAllowed", "the server does not allow this method")

    def _handle_update(self, target: RequestTarget, document: Object, wish: WriteOptions) -> Object:
        name = (document.get("metadata") or {}).get("name", target.name)
        if name != target.name:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL "
                f"({target.name})"
            )
        return self.cluster.update(target.kind, target.namespace, target.name, document, wish)

    def _handle_list(self, request: web.Request, target: RequestTarget) -> web.Response:
        query = request.query
        kind = target.kind
        result = self.cluster.select(
            kind,
            target.namespace,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
            limit=0 if query.get("resourceVersion") == "0" else int(query.get("limit") or 0),
            token=query.get("continue", ""),
        )
        metadata: Object = {"resourceVersion": result.version}
        if result.token:
            metadata["continue"] = result.token
            if result.remaining:
                metadata["remainingItemCount"] = result.remaining
        # The items of a builtin list have no apiVersion and kind.
        items = result.items if kind.custom else [_without_type_meta(obj) for obj in result.items]
        return json_response(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": metadata,
                "items": items,
            }
        )

    async def _handle_watch(
        self, request: web.Request, target: RequestTarget
    ) -> web.StreamResponse:
        query = request.query
        fits = parse_selectors(
            target.kind,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
        )
        watch = WatchStream(
            self.cluster.storage,
            target.kind,
            namespace=target.namespace,
            fits=fits,
            bookmarks=query.get("allowWatchBookmarks") == "true",
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        seconds = float(query.get("timeoutSeconds") or _WATCH_SECONDS)
        self.watches.add(watch)
        try:
            async for line in stream_lines(
                watch, query.get("resourceVersion", ""), seconds=seconds
            ):
                await response.write(line)
        except ConnectionError:
            pass
        finally:
            self.watches.discard(watch)
            watch.end()
        return response

    async def _handle_patch(self, request: web.Request, target: RequestTarget) -> web.Response:
        document = await _read_body(request)
        result = self.cluster.patch(
            target.kind,
            target.namespace,
            target.name,
            request.content_type,
            document,
            _write_options(request, target),
        )
        return json_response(result)

    async def _handle_delete(self, request: web.Request, target: RequestTarget) -> web.Response:
        kind = target.kind
        options = await _read_body(request) if request.can_read_body else {}
        obj, result = self.cluster.delete(
            kind,
            target.namespace,
            target.name,
            options,
            dry_run=request.query.get("dryRun") == "All",
        )
        if kind.rules.returns_deleted or not result:
            return json_response(obj)
        details = {"name": target.name, "kind": kind.plural, "uid": obj["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        return json_response(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        )

    async def _handle_delete_collection(
        self, request: web.Request, target: RequestTarget
    ) -> web.Response:
        options = await _read_body(request) if request.can_read_body else {}
        result = self.cluster.delete_all(
            target.kind,
            target.namespace,
            options,
            labels=request.query.get("labelSelector", ""),
            fields=request.query.get("fieldSelector", ""),
        )
        metadata = {"resourceVersion": str(self.cluster.storage.version)}
        return json_response(
            {
                "kind": f"{target.kind.kind}List",
                "apiVersion": target.kind.api_version,
                "metadata": metadata,
                "items": result,
            }
        )

    async def _handle_scale(
        self, request: web.Request, target: RequestTarget, verb: str
    ) -> web.Response:
        obj = self.cluster.get(target.kind, target.namespace, target.name)
        scale = render_scale(target.kind, obj)
        if verb == "get":
            return json_response(scale)
        document = await _read_body(request)
        if verb == "patch":
            scale["spec"] |= document.get("spec") or {}
            document = {"spec": scale["spec"]}
        wish = WriteOptions(dry_run=request.query.get("dryRun") == "All")
        new = apply_scale(target.kind, obj, document)
        result = self.cluster.update(target.kind, target.namespace, target.name, new, wish)
        return json_response(render_scale(target.kind, result))

    async def _handle_binding(self, request: web.Request, target: RequestTarget) -> web.Response:
        document = await _read_body(request)
        pod = self.cluster.get(target.kind, target.namespace, target.name)
        if pod["spec"].get("nodeName"):
            raise StatusError(409, "Conflict", f"pod {target.name} is already assigned to a node")
        spec = {**pod["spec"], "nodeName": document["target"]["name"]}
        key = (target.namespace, target.name)
        self.cluster.storage.write(target.kind, key, {**pod, "spec": spec})
        return json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)

    async def _handle_log(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        pod = self.cluster.get(target.kind, target.namespace, target.name)
        container = _select_container(pod, request.query.get("container", ""))
        if not pod["spec"].get("nodeName"):
            # Without a kubelet to ask, the real server answers with an empty body.
            return web.Response()

        def find_run() -> ContainerRun | None:
            result = self.cluster.storage.of(target.kind).get((target.namespace, target.name))
            return container_run(result, container) if result is not None else None

        now = self.cluster.now()
        try:
            return await serve_log(
                request, self.cluster.logs, container, find_run=find_run, now=now
            )
        except (LogUnavailable, ValueError) as error:
            raise bad_request(str(error)) from error


def _pod_subresources(kind: ResourceKind) -> tuple[str, ...]:
    return ("binding", "log") if kind.label == "pods" else ()


def _select_container(pod: Object, asked: str) -> str:
    """Return the requested container (kubernetes, pkg/registry/core/pod/strategy.go)."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    if not asked and len(names) > 1:
        raise bad_request(
            f"a container name must be specified for pod {pod['metadata']['name']}, choose one "
            f"of: [{' '.join(names)}]"
        )
    every = [*names, *(container["name"] for container in pod["spec"].get("initContainers") or ())]
    if asked and asked not in every:
        name = pod["metadata"]["name"]
        raise bad_request(f"container {asked} is not valid for pod {name}")
    return asked or str(names[0])


def request_verb(request: web.Request, target: RequestTarget) -> str:
    """Return the Kubernetes verb of a request."""
    verb = _BY_METHOD.get(request.method, "")
    if verb == "get" and not target.name:
        return "watch" if request.query.get("watch") in ("true", "1") else "list"
    if verb == "delete" and not target.name:
        return "deletecollection"
    return verb


def _write_options(request: web.Request, target: RequestTarget) -> WriteOptions:
    return WriteOptions(
        dry_run=request.query.get("dryRun") == "All",
        subresource=target.subresource,
        manager=request.query.get("fieldManager", ""),
    )


async def _read_body(request: web.Request) -> Any:
    try:
        return msgspec.json.decode(await request.read())
    except web.HTTPRequestEntityTooLarge as error:
        text = f"Request entity too large: limit is {MAX_BODY}"
        raise StatusError(413, "RequestEntityTooLarge", text) from error
    except msgspec.DecodeError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a response with one JSON value."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def _without_type_meta(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}
