"""gRPC of the Open Inference Protocol, version 2, over the application's queue.

Source: kserve/open-inference-protocol, ``open_inference_grpc.proto``. The messages are described
here by the fields that count, so that any version of protobuf that the predictor needs will do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

from .app import HttpError, ServerApp
from .tensors import (
    InferenceRequest,
    InputTensor,
    InvalidRequest,
    OutputTensor,
    RequestInput,
    RequestOutput,
    add_input,
    encode_binary,
)

_SERVICE = "inference.GRPCInferenceService"
#: By message: number, name and type of its fields; ``*`` is repeated.
_MESSAGES = {
    "Empty": "",
    "Flag": "1 value bool",
    "ModelName": "1 name string, 2 version string",
    "Server": "1 name string, 2 version string, 3 extensions string*",
    "Metadata": "1 name string, 2 datatype string, 3 shape int64*",
    "Model": "1 name string, 2 versions string*, 3 platform string, 4 inputs Metadata*,"
    " 5 outputs Metadata*",
    "Contents": "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*,"
    " 4 uint_contents uint32*, 5 uint64_contents uint64*, 6 fp32_contents float*,"
    " 7 fp64_contents double*, 8 bytes_contents bytes*",
    "Parameter": "3 string_param string",
    "NamedParameter": "1 key string, 2 value Parameter",
    "Tensor": "1 name string, 2 datatype string, 3 shape int64*, 4 parameters NamedParameter*,"
    " 5 contents Contents",
    "Name": "1 name string",
    "InferRequest": "1 model_name string, 2 model_version string, 3 id string, 5 inputs Tensor*,"
    " 6 outputs Name*, 7 raw_input_contents bytes*",
    "InferResponse": "1 model_name string, 2 model_version string, 3 id string, 5 outputs Tensor*,"
    " 6 raw_output_contents bytes*",
}
_CONTENTS = {
    "BOOL": "bool", "UINT8": "uint", "UINT16": "uint", "UINT32": "uint", "UINT64": "uint64",
    "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64", "FP32": "fp32",
    "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL, 503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


def make_messages() -> dict[str, Any]:
    """Return the classes of the messages by their names here."""
    file = descriptor_pb2.FileDescriptorProto(name="open_inference", syntax="proto3")
    field_type = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field in filter(None, fields.split(", ")):
            number, key, kind = field.split()
            label = field_type.LABEL_REPEATED if kind[-1] == "*" else field_type.LABEL_OPTIONAL
            added = described.field.add(name=key, number=int(number), label=label)
            kind = kind.rstrip("*")
            if kind in _MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, kind
            else:
                added.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()  # the predictor may have the protocol's own
    pool.Add(file)
    if hasattr(message_factory, "GetMessageClass"):
        make = message_factory.GetMessageClass
    else:  # before protobuf 4.22
        make = message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(name)) for name in _MESSAGES}


class InferenceService:
    """The methods of the service; each takes and returns a message."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app
        self._messages = make_messages()

    def make_handler(self) -> Any:
        """Return the handler for a server of gRPC."""
        methods = {
            "ServerLive": ("Empty", self._answer_live),
            "ServerReady": ("Empty", self._answer_ready),
            "ModelReady": ("ModelName", self._answer_ready),
            "ServerMetadata": ("Empty", self._describe_server),
            "ModelMetadata": ("ModelName", self._describe_model),
            "ModelInfer": ("InferRequest", self._infer_model),
        }
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._make_method(name, self._messages[kind], answer)
                )
                for name, (kind, answer) in methods.items()
            },
        )

    def _make_method(self, name: str, kind: Any, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        async def call(data: bytes, context: Any) -> bytes:
            code = grpc.StatusCode.OK
            self._app.calls += 1
            try:
                if self._app.is_ending:
                    # Core would cancel it, which clients do not take for a reason to try again.
                    raise HttpError(503, "the server ends")
                response = await answer(kind.FromString(data))
                encoded: bytes = response.SerializeToString()
                return encoded
            except Exception as error:
                if isinstance(error, message.DecodeError):
                    error = InvalidRequest(f"invalid message: {error}")
                refusal = self._app.explain_error(error)
                code = _CODES.get(refusal.status, grpc.StatusCode.INTERNAL)
                await context.abort(code, str(refusal))
                raise
            finally:
                self._app.calls += 1
                self._app.metrics.requests(f"grpc/{name}", code.name).inc()

        return call

    async def _answer_live(self, request: Any) -> Any:
        return self._messages["Flag"](value=True)

    async def _answer_ready(self, request: Any) -> Any:
        if hasattr(request, "name"):
            self._check_model(request.name, request.version)
        return self._messages["Flag"](value=self._app.is_ready)

    async def _describe_server(self, request: Any) -> Any:
        return self._messages["Server"](**self._app.about_server)

    async def _describe_model(self, request: Any) -> Any:
        self._check_model(request.name, request.version)
        return self._messages["Model"](**self._app.model.describe())

    def _check_model(self, name: str, version: str) -> None:
        model = self._app.model
        if name != model.name or version not in ("", model.version):
            raise HttpError(404, f"the model here is {model.name}, version {model.version}")

    async def _infer_model(self, request: Any) -> Any:
        self._check_model(request.model_name, request.model_version)
        outputs = [RequestOutput(output.name) for output in request.outputs]
        wanted = InferenceRequest([], request.id, outputs=outputs or None)
        results = await self._app.infer(wanted, _read_inputs(request))
        response = self._messages["InferResponse"](
            model_name=self._app.model.name, model_version=self._app.model.version, id=request.id
        )
        # FP16 has no other form; and one form is for all tensors of a response.
        is_raw = bool(request.raw_input_contents) or any(
            result.datatype == "FP16" for result in results
        )
        for result in results:
            self._add_output(response, result, is_raw)
        return response

    def _add_output(self, response: Any, result: OutputTensor, is_raw: bool) -> None:
        tensor = response.outputs.add(
            name=result.name, datatype=result.datatype, shape=result.array.shape
        )
        if result.content_type == "json":
            tensor.parameters.add(key="content_type").value.string_param = "json"
        if is_raw:
            response.raw_output_contents.append(encode_binary(result.array))
        else:
            contents = getattr(tensor.contents, f"{_CONTENTS[result.datatype]}_contents")
            contents.extend(result.array.reshape(-1).tolist())


def _read_inputs(request: Any) -> dict[str, InputTensor]:
    """Return the tensors by name; raises :class:`InvalidRequest`."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequest(f"raw_input_contents has {len(raw)} of {len(request.inputs)} tensors")
    tensors: dict[str, InputTensor] = {}
    for number, tensor in enumerate(request.inputs):
        item = RequestInput(tensor.name, list(tensor.shape), tensor.datatype)
        if any(
            pair.key == "content_type" and pair.value.string_param == "json"
            for pair in tensor.parameters
        ):
            item.parameters = {"content_type": "json"}
        if raw:
            if tensor.HasField("contents"):
                raise InvalidRequest(f"input {item.name!r} has contents and raw_input_contents")
            add_input(tensors, item, raw[number])
            continue
        if item.datatype == "FP16":
            raise InvalidRequest(f"input {item.name!r}: FP16 has no form but raw_input_contents")
        kind = _CONTENTS.get(item.datatype)
        item.data = list(getattr(tensor.contents, f"{kind}_contents")) if kind else []
        add_input(tensors, item)
    return tensors


async def start_grpc(app: ServerApp, address: str, max_body: int) -> Any:
    """Serve on an address that several processes may share; return the server."""
    server = grpc.aio.server(
        options=(("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", max_body)),
    )
    server.add_generic_rpc_handlers((InferenceService(app).make_handler(),))
    server.add_insecure_port(address)
    await server.start()
    return server
