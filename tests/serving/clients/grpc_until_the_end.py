# mypy: ignore-errors
"""Call the server by gRPC from several threads until it refuses; print how each ended."""

import sys
import threading

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
tensor.contents.fp32_contents.extend([1, 2])
request = service_pb2.ModelInferRequest(model_name="m", inputs=[tensor])
answered = threading.Semaphore(0)


def call():
    channel = grpc.insecure_channel(sys.argv[1], [("grpc.use_local_subchannel_pool", 1)])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    while True:
        try:
            stub.ModelInfer(request)
        except grpc.RpcError as error:
            print(error.code().name, error.details(), flush=True)
            return
        answered.release()


threads = [threading.Thread(target=call) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(100):
    answered.acquire()
print("answered", flush=True)
for thread in threads:
    thread.join()
