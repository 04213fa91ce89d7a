"""The ASGI application: the routes of the protocols, health, metrics, and a page to try the model.

Protocols: Open Inference Protocol v2 (REST, with binary tensors), KServe's V1 ``:predict``,
SageMaker's ``/ping`` and ``/invocations``, which MLflow's scoring server has, too.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .batching import QueueFull, RequestBatcher, TooSlow
from .model import ServedModel
from .payloads import (
    CSV,
    JSON,
    NPY,
    Invocation,
    NotAcceptable,
    UnsupportedType,
    choose_type,
    compress_body,
    decompress_body,
    encode_table,
    read_instances,
    read_invocation,
)
from .tensors import (
    DTYPES,
    InferenceRequest,
    InputTensor,
    InvalidRequest,
    OutputTensor,
    decode_request,
    encode_response,
    read_json,
    select_outputs,
)

try:
    from .. import predictor_values as values
except ImportError:  # in the image
    import predictor_values as values  # type: ignore[import-not-found,no-redef]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
#: The headers of a request by name.
Headers = Mapping[bytes, bytes]

_JSON_LENGTH = b"inference-header-content-length"
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAX_MESSAGE = 500
#: Smaller answers are not compressed: it costs more than it saves.
_LEAST_COMPRESSED = 4096
_REFUSALS = {
    "400": "Invalid input", "406": "The answer has no such type", "413": "Too large",
    "415": "Unknown content type", "500": "The predictor raised", "503": "Too many requests wait",
    "504": "The predictor did not answer in time",
}  # fmt: skip


class ServerOptions(NamedTuple):
    """What an administrator may set; ``max_body`` is in bytes, ``timeout`` in seconds.

    ``origins`` are those whose pages may send requests (CORS), ``*`` all.
    """

    max_rows: int = 32
    max_waiting: int = 256
    timeout: float = 60.0
    max_body: int = 64 << 20
    origins: tuple[str, ...] = ()


class ServerAnswer(NamedTuple):
    """An answer; ``headers`` come on top of content type and length."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class HttpError(Exception):
    """A refusal with its status code; the body is ``{"error": message}``."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple((key.encode(), value.encode()) for key, value in headers.items())


class ServerMetrics:
    """The server's metrics, of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        measure = partial(Histogram, registry=self.registry)
        requests = count("danlu_requests", "Requests by route and status.", ("route", "status"))
        #: The counter of a route and a status.
        self.requests = lru_cache(1000)(requests.labels)
        self.seconds = measure("danlu_request_seconds", "Time to answer.", buckets=_SECONDS)
        self.calls = measure("danlu_predict_seconds", "Time by call.", buckets=_SECONDS)
        self.rows = measure("danlu_batch_rows", "Rows by call.", buckets=_ROWS)
        self.waiting = Gauge("danlu_waiting_requests", "That wait.", registry=self.registry)

    def observe_call(self, rows: int, seconds: float) -> None:
        """Count a call of the predictor."""
        self.rows.observe(rows)
        self.calls.observe(seconds)


class ServerApp:
    """The server of one model.

    ``load`` returns the model, warmed up; what it raises ends the process. ``on_start`` is called
    after it, before the first request, ``on_stuck`` when the predictor hangs.

    Attributes:
        is_draining: Set when the server ends soon: it is not ready, and answers close connections.
        is_ending: Set shortly before the end: calls by gRPC are refused.
        calls: How many calls by gRPC have begun and ended.
    """

    def __init__(
        self,
        load: Callable[[], ServedModel],
        options: ServerOptions = ServerOptions(),  # noqa: B008 (immutable)
        *,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = load
        self._options = options
        self._on_start = on_start
        self._on_stuck = on_stuck
        self.metrics = ServerMetrics()
        self.is_draining = False
        self.is_ending = False
        self.calls = 0
        self.about_server: dict[str, Any] = {
            "name": "danlu", "version": "1", "extensions": ["binary_tensor_data"],
        }  # fmt: skip
        self.model: ServedModel
        self._batcher: RequestBatcher | None = None
        self._routes = [
            ("GET", "/", self._show_page),
            ("GET", "/v2", self._describe_server),
            ("GET", "/v2/health/live", self._answer_live),
            ("GET", "/v2/health/ready", self._answer_ready),
            ("GET", "/v2/models/NAME", self._describe_model),
            ("GET", "/v2/models/NAME/ready", self._answer_ready),
            ("POST", "/v2/models/NAME/infer", self._answer_infer),
            ("GET", "/v1/models", self._list_v1),
            ("GET", "/v1/models/NAME", self._describe_v1),
            ("POST", "/v1/models/NAME:predict", self._predict_v1),
            ("GET", "/ping", self._answer_ready),
            ("GET", "/health", self._answer_ready),
            ("GET", "/version", self._show_version),
            ("POST", "/invocations", self._answer_invocation),
            ("GET", "/metrics", self._show_metrics),
            ("GET", "/openapi.json", self._show_openapi),
        ]
        #: By path and method: the route and its handler.
        self._handlers: dict[str, dict[str, tuple[str, Any]]] = {}

    def start(self) -> None:
        """Load the model."""
        self.model = self._load()
        for method, route, handler in self._routes:
            for name in (self.model.name, f"{self.model.name}/versions/{self.model.version}"):
                handlers = self._handlers.setdefault(route.replace("NAME", name), {})
                handlers[method] = route, handler
        self._batcher = RequestBatcher(
            self.model.call,
            merge=self.model.merge,
            split=self.model.split,
            max_rows=self._options.max_rows if self.model.batches else 1,
            max_waiting=self._options.max_waiting,
            timeout=self._options.timeout,
            observe=self.metrics.observe_call,
            on_stuck=self._on_stuck,
        )
        self.metrics.waiting.set_function(lambda: self._batcher.waiting if self._batcher else 0)

    @property
    def is_ready(self) -> bool:
        """Whether requests will be answered."""
        return not (self._batcher is None or self._batcher.is_stuck or self.is_draining)

    @property
    def is_calling(self) -> bool:
        """Whether the predictor works, or hangs."""
        return self._batcher is not None and self._batcher.is_calling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        asked = dict(reversed(scope["headers"]))  # the first of a name
        route, response = await self._handle_request(scope, asked, receive)
        self.metrics.requests(route, response.status).inc()
        body, headers = response.body, list(response.headers)
        if len(body) >= _LEAST_COMPRESSED:
            headers.append((b"vary", b"accept-encoding"))
            if _accepts_gzip(_read_header(asked, b"accept-encoding")):
                body = compress_body(body)
                headers.append((b"content-encoding", b"gzip"))
        headers += [
            (b"content-type", response.content_type.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        if self._options.origins:
            headers += self._allow_origin(_read_header(asked, b"origin"))
        if self.is_draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})

    def _allow_origin(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Return the headers for a request of a page (Fetch standard, "CORS protocol")."""
        origins = self._options.origins
        if "*" not in origins and origin not in origins:
            return [(b"vary", b"origin")]
        allowed = b"*" if "*" in origins else origin.encode("latin-1")
        return [
            (b"vary", b"origin"),
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", _JSON_LENGTH),
        ]

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self.start()
            if self._on_start is not None:
                await self._on_start()
        except Exception as error:
            traceback.print_exc()
            await send({"type": "lifespan.startup.failed", "message": _describe_error(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _handle_request(
        self, scope: Scope, headers: Headers, receive: Receive
    ) -> tuple[str, ServerAnswer]:
        route = "unknown"
        try:
            if scope["method"] == "OPTIONS" and self._options.origins:
                return "preflight", ServerAnswer(204, b"", headers=_PREFLIGHT)
            route, handler = self._find_route(scope["method"], scope["path"])
            start = time.monotonic()
            response: ServerAnswer = await handler(headers, receive)
            if scope["method"] == "POST":
                self.metrics.seconds.observe(time.monotonic() - start)
        except Exception as error:
            refusal = self.explain_error(error)
            body = msgspec.json.encode({"error": str(refusal)[:_MAX_MESSAGE]})
            response = ServerAnswer(refusal.status, body, headers=refusal.headers)
        return route, response

    def explain_error(self, error: Exception) -> HttpError:
        """Return the refusal for what a request raised; a fault of the server is logged."""
        if isinstance(error, HttpError):
            return error
        if isinstance(error, (InvalidRequest, values.InvalidInputError)):
            return HttpError(400, str(error))
        if isinstance(error, UnsupportedType):
            return HttpError(415, str(error))
        if isinstance(error, NotAcceptable):
            return HttpError(406, str(error))
        if isinstance(error, QueueFull):
            return HttpError(503, str(error), {"retry-after": str(error.seconds)})
        if isinstance(error, TooSlow):
            return HttpError(504, str(error))
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        return HttpError(500, _describe_error(error))

    def _find_route(self, method: str, path: str) -> tuple[str, Any]:
        handlers = self._handlers.get(path.rstrip("/") or "/")
        if handlers is None:
            if path.startswith(("/v1/models/", "/v2/models/")):
                raise HttpError(404, f"the model here is {self.model.name}")
            raise HttpError(404, f"there is no {path[:100]}")
        found = handlers.get("GET" if method == "HEAD" else method)
        if found is None:
            (allowed,) = handlers
            raise HttpError(405, f"use {allowed}", {"allow": allowed})
        return found

    # -- what the server is -----------------------------------------------------------------------

    async def _show_page(self, headers: Headers, receive: Receive) -> ServerAnswer:
        page = Path(__file__).with_name("page.html").read_bytes()
        about = {
            "name": self.model.name,
            "version": self.model.version,
            "schema": self.model.schema,
            "example": self.model.encode_example(),
        }
        data = msgspec.json.encode(about).replace(b"<", b"\\u003c")
        return ServerAnswer(200, page.replace(b"{{ABOUT}}", data), "text/html; charset=utf-8")

    async def _describe_server(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return _json_response(self.about_server)

    async def _answer_live(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return _json_response({"live": True})

    async def _answer_ready(self, headers: Headers, receive: Receive) -> ServerAnswer:
        if not self.is_ready:
            raise HttpError(503, "the model is not ready")
        return _json_response({"name": self.model.name, "ready": True})

    async def _show_version(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return ServerAnswer(200, self.about_server["version"].encode(), "text/plain")

    async def _describe_model(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return _json_response(self.model.describe())

    async def _list_v1(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return _json_response({"models": [self.model.name]})

    async def _describe_v1(self, headers: Headers, receive: Receive) -> ServerAnswer:
        return _json_response({"name": self.model.name, "ready": True})

    async def _show_metrics(self, headers: Headers, receive: Receive) -> ServerAnswer:
        text = generate_latest(self.metrics.registry)
        return ServerAnswer(200, text, "text/plain; version=0.0.4; charset=utf-8")

    async def _show_openapi(self, headers: Headers, receive: Receive) -> ServerAnswer:
        number = {"type": "array", "items": {"type": "integer", "minimum": 0}}
        tensor = {
            "type": "object", "required": ["name", "shape", "datatype", "data"],
            "properties": {
                "name": {"enum": list(self.model.schema["inputs"])}, "shape": number,
                "datatype": {"enum": [*DTYPES, "BYTES"]}, "data": {"type": "array"},
            },
        }  # fmt: skip
        bodies = {
            "infer": _describe_object("inputs", {"type": "array", "items": tensor}),
            "predict": _describe_object("instances", {"type": "array"}),
            "invocations": {},
        }
        refused = {"content": {JSON: {"schema": _describe_object("error", {"type": "string"})}}}
        paths: dict[str, Any] = {}
        for method, path, _ in self._routes:
            operation: dict[str, Any] = {"responses": {"200": {"description": "OK"}}}
            codes = {"503": "Not ready"}
            if method == "POST":
                schema = bodies[re.split("[/:]", path)[-1]]
                operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
                codes = _REFUSALS
            for code, text in codes.items():
                operation["responses"][code] = {"description": text, **refused}
            paths[path.replace("NAME", self.model.name)] = {method.lower(): operation}
        info = {"title": self.model.name, "version": self.model.version}
        return _json_response({"openapi": "3.1.0", "info": info, "paths": paths})

    # -- predictions ------------------------------------------------------------------------------

    async def _predict_for(self, arguments: dict[str, Any]) -> Any:
        """Return the predictor's result."""
        assert self._batcher is not None
        rows, key = self.model.measure_rows(arguments) if self.model.batches else (1, None)
        try:
            return await self._batcher.submit(arguments, rows=rows, key=key)
        except (QueueFull, TooSlow):
            raise
        except Exception as error:
            status = getattr(error, "status_code", None)
            if isinstance(status, int) and 400 <= status < 500:  # the predictor refuses the input
                raise HttpError(status, str(error)) from error
            traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
            raise HttpError(500, f"the predictor raised {_describe_error(error)}") from error

    async def infer(
        self, request: InferenceRequest, tensors: Mapping[str, InputTensor]
    ) -> list[OutputTensor]:
        """Return the outputs that a request of the Open Inference Protocol asks for."""
        result = await self._predict_for(self.model.convert_tensors(tensors))
        return select_outputs(self.model.list_outputs(result), request)

    async def _answer_infer(self, headers: Headers, receive: Receive) -> ServerAnswer:
        body = await self._read_body(headers, receive)
        text = headers.get(_JSON_LENGTH)
        if text and not text.isdigit():
            raise HttpError(400, "invalid Inference-Header-Content-Length")
        request, tensors = decode_request(body, int(text) if text else None)
        outputs = await self.infer(request, tensors)
        about = {"model_name": self.model.name, "model_version": self.model.version}
        data, length = encode_response(about, outputs, request)
        if length is None:
            return ServerAnswer(200, data)
        header = (_JSON_LENGTH, str(length).encode())
        return ServerAnswer(200, data, "application/octet-stream", (header,))

    async def _predict_v1(self, headers: Headers, receive: Receive) -> ServerAnswer:
        value = read_json(await self._read_body(headers, receive))
        if not isinstance(value, dict) or not isinstance(value.get("instances"), list):
            raise HttpError(400, 'the body must be {"instances": [...]}')
        for key in value:
            # TensorFlow Serving's clients name the signature, of which there is one.
            if key != "instances" and (key, value[key]) != ("signature_name", "serving_default"):
                raise HttpError(400, f"unknown key {key!r} next to 'instances'")
        invocation = read_instances(value["instances"], self.model.inputs)
        return self._encode_predictions(await self._predict_invocation(invocation))

    async def _answer_invocation(self, headers: Headers, receive: Receive) -> ServerAnswer:
        """SageMaker's and MLflow's: an input of the predictor, or one of MLflow's forms."""
        kind = choose_type(_read_header(headers, b"accept"))
        body = await self._read_body(headers, receive)
        content_type = _read_header(headers, b"content-type")
        invocation = read_invocation(content_type, body, self.model.inputs)
        result = await self._predict_invocation(invocation)
        if kind in (CSV, NPY):
            return ServerAnswer(200, encode_table(result, kind), kind)
        if invocation.is_form:
            return self._encode_predictions(result)
        return _json_response(self.model.encode_result(result))

    async def _predict_invocation(self, invocation: Invocation) -> Any:
        """Return the result, or the list of those of many inputs, which are checked before."""
        arguments = [self.model.convert_input(value) for value in invocation.inputs]
        results = [await self._predict_for(item) for item in arguments]
        return results if invocation.is_many else results[0]

    def _encode_predictions(self, result: Any) -> ServerAnswer:
        encoded = self.model.encode_result(result)
        is_whole = isinstance(encoded, dict) and "predictions" in encoded
        return _json_response(encoded if is_whole else {"predictions": encoded})

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._options.max_body
        length = headers.get(b"content-length", b"")
        is_larger = length.isdigit() and int(length) > limit
        parts: list[bytes] = []
        size, is_complete = 0, False
        while not (is_complete or is_larger):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HttpError(400, "the client has gone")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_larger = size > limit
            is_complete = not message.get("more_body")
        if not is_larger:
            coding = _read_header(headers, b"content-encoding")
            body = decompress_body(b"".join(parts), coding, limit)
            if len(body) <= limit:
                return body
        raise HttpError(413, f"the body has more than {limit} bytes")


_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"content-type, content-encoding, " + _JSON_LENGTH),
    (b"access-control-max-age", b"600"),
)


def _accepts_gzip(codings: str) -> bool:
    for coding in codings.lower().split(","):
        name, _, quality = coding.replace(" ", "").partition(";q=")
        if name in ("gzip", "*"):
            return quality.strip("0.") != "" or not quality
    return False


def _read_header(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _describe_object(key: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "required": [key], "properties": {key: schema}}


def _json_response(value: Any) -> ServerAnswer:
    return ServerAnswer(200, msgspec.json.encode(value))


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
