# mypy: ignore-errors
"""KServe's clients, REST and gRPC, against a server with the model of test_served_clients.py."""

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

TYPES = {"FP32": np.float32, "FP16": np.float16}


def make_request(datatype, is_binary):
    rows = InferInput("x", [2, 2], datatype)
    rows.set_data_from_numpy(np.array([[1, 2], [3, 4]], TYPES[datatype]), binary_data=is_binary)
    texts = InferInput("texts", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["é", "two"], object), binary_data=is_binary)
    return InferRequest("m", [rows, texts], request_id="7")


def check_response(response):
    assert response.id == "7"
    outputs = {output.name: output.as_numpy() for output in response.outputs}
    assert outputs["y"].tolist() == [[2, 4], [6, 8]]
    assert outputs["half"].dtype == np.float16
    assert outputs["ids"].tolist() == [[1, 2], [3, 4]]


async def main(port, grpc_port):
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    address = f"http://127.0.0.1:{port}"
    remote = InferenceGRPCClient(f"127.0.0.1:{grpc_port}")
    assert await rest.is_server_live(address)
    assert await rest.is_server_ready(address)
    assert await rest.is_model_ready(address, "m")
    assert await remote.is_server_live()
    assert await remote.is_server_ready()
    assert await remote.is_model_ready("m")
    for datatype, is_binary in (("FP32", False), ("FP32", True), ("FP16", True)):
        request = make_request(datatype, is_binary)
        check_response(await rest.infer(address, request, model_name="m"))
        check_response(await remote.infer(make_request(datatype, is_binary)))
    old = InferenceRESTClient(RESTConfig(protocol="v1"))
    body = {"instances": [{"x": [1, 2], "texts": "a"}]}
    answer = await old.infer(address, body, model_name="m")
    assert answer["predictions"]["y"] == [[2, 4]]


asyncio.run(main(*sys.argv[1:]))
