"""S3 over HTTP: moto, with the clients of Kubeflow Trainer's initializers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CLIENT_PACKAGES = ("huggingface_hub==2.4.0", "opendal==0.47.12")
SERVER_PACKAGES = ("moto[s3,server]==5.2.5",)

#: Serves buckets of objects of some sizes until its stdin is closed.
_SERVER = """
import json, sys
import boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = "http://{}:{}".format(*server.get_host_and_port())
keys = dict(aws_access_key_id="id", aws_secret_access_key="key", region_name="us-east-1")
s3 = boto3.client("s3", endpoint_url=url, **keys)
for bucket, objects in json.loads(sys.stdin.readline()).items():
    s3.create_bucket(Bucket=bucket)
    for key, size in objects.items():
        s3.put_object(Bucket=bucket, Key=key, Body=b"x" * size)
print(url, flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def serve_s3(packages: Path, buckets: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Serve objects of these sizes within the block; yield the address."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(buckets) + "\n")
        server.stdin.flush()
        lines = iter(server.stdout.readline, "")
        yield next(line.strip() for line in lines if line.startswith("http://"))
