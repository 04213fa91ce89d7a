# mypy: ignore-errors
# ruff: noqa: PT017 (without pytest)
"""Triton's clients, HTTP and gRPC, against a server with the model of test_served_clients.py."""

import sys

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

TYPES = {"FP32": np.float32, "FP16": np.float16, "INT64": np.int64}


def make_inputs(module, datatype="FP32", **form):
    rows = module.InferInput("x", [2, 2], datatype)
    rows.set_data_from_numpy(np.array([[1, 2], [3, 4]], TYPES[datatype]), **form)
    texts = module.InferInput("texts", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["é".encode(), b"two"], object), **form)
    return [rows, texts]


def check_outputs(result):
    assert result.as_numpy("y").tolist() == [[2, 4], [6, 8]]
    assert result.as_numpy("y").dtype == np.float32
    assert result.as_numpy("half").tolist() == [[1, 2], [3, 4]]
    assert result.as_numpy("half").dtype == np.float16
    assert result.as_numpy("ids").dtype == np.int64
    assert result.as_numpy("texts").tolist() == ["éé".encode(), b"twotwo"]
    assert result.as_numpy("raw").tolist() == [b"\xff\x00"]


def check_refusals(client, module):
    for arguments in (
        {"model_name": "other", "inputs": make_inputs(module)},
        {"model_name": "m", "inputs": make_inputs(module), "model_version": "2"},
        {"model_name": "m", "inputs": make_inputs(module)[1:]},
        {"model_name": "m", "inputs": make_inputs(module),
         "outputs": [module.InferRequestedOutput("missing")]},
    ):  # fmt: skip
        try:
            client.infer(**arguments)
        except InferenceServerException as error:
            print(module.__name__, error.status(), error.message())
        else:
            raise AssertionError(arguments)


def check_client(client, module, forms):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m", "1")
    for form in forms:
        for datatype in TYPES if form.get("binary_data", True) else ("FP32", "INT64"):
            inputs = make_inputs(module, datatype, **form)
            result = client.infer("m", inputs, request_id="7")
            check_outputs(result)
            only = client.infer("m", inputs, outputs=[module.InferRequestedOutput("ids")])
            assert only.as_numpy("ids").tolist() == [[1, 2], [3, 4]]
            assert only.as_numpy("y") is None
    check_refusals(client, module)


def check_messages(address):
    """What Triton's client does not send: typed contents, and what is wrong."""
    message = service_pb2.ModelInferRequest
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))
    x = message.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    typed = message.InferInputTensor()
    typed.CopyFrom(x)
    typed.contents.fp32_contents.extend([1.5, 2])
    texts = message.InferInputTensor(name="texts", datatype="BYTES", shape=[1])
    texts.contents.bytes_contents.append(b"a")
    y = message.InferRequestedOutputTensor(name="y")
    answer = stub.ModelInfer(message(model_name="m", inputs=[typed, texts], outputs=[y], id="1"))
    assert list(answer.outputs[0].contents.fp32_contents) == [3, 4]
    assert not answer.raw_output_contents
    half = message.InferInputTensor(name="x", datatype="FP16", shape=[1, 2])
    none = message.InferInputTensor(name="x", datatype="FP31", shape=[1, 2])
    for inputs, raw in (
        ([typed, texts], [b"\0" * 8]), ([typed, texts], [b"\0" * 8, b""]), ([x], [b"\0" * 7]),
        ([half, texts], []), ([none, texts], []), ([x, texts], []), ([typed, typed], []),
    ):  # fmt: skip
        try:
            stub.ModelInfer(message(model_name="m", inputs=inputs, raw_input_contents=raw))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        else:
            raise AssertionError((inputs, raw))
    channel = grpc.insecure_channel(address)
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    for data, code in (
        (b"\xff\xff", "INVALID_ARGUMENT"),
        (b"\0" * (65 << 20), "RESOURCE_EXHAUSTED"),
    ):
        try:
            call(data)
        except grpc.RpcError as error:
            assert error.code().name == code, error
        else:
            raise AssertionError(code)


http_client = triton_http.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}")
assert "binary_tensor_data" in http_client.get_server_metadata()["extensions"]
assert http_client.get_model_metadata("m")["inputs"][0]["shape"] == [-1, 2]
check_client(http_client, triton_http, ({"binary_data": True}, {"binary_data": False}))
grpc_client = triton_grpc.InferenceServerClient(f"127.0.0.1:{sys.argv[2]}")
assert "binary_tensor_data" in grpc_client.get_server_metadata().extensions
assert list(grpc_client.get_model_metadata("m", "1").inputs[0].shape) == [-1, 2]
check_client(grpc_client, triton_grpc, ({},))
check_messages(f"127.0.0.1:{sys.argv[2]}")
