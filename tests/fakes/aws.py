"""An endpoint of AWS over HTTP, as much as boto3 needs: answers by the name of the operation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: Called with the parameters of a request; returns the HTTP status and the answer.
Operation = Callable[[dict[str, Any]], tuple[int, Mapping[str, Any]]]


class AwsEndpoint:
    """What an endpoint was asked: ``requests`` has operation, region and parameters."""

    def __init__(self, operations: Mapping[str, Operation], port: int) -> None:
        self.operations = dict(operations)
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.url = f"http://127.0.0.1:{port}"

    def environ(self, home: Path) -> dict[str, str]:
        """Return variables with which a program finds this endpoint and credentials for it."""
        return aws_variables(self.url, home)


def aws_variables(url: str, home: Path) -> dict[str, str]:
    """Return variables with which a program finds an endpoint and credentials for it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIAFAKE",
        "AWS_SECRET_ACCESS_KEY": "aws-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(home / "aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "aws-credentials"),
        "NO_PROXY": "127.0.0.1",
    }


def refuse_request(code: str, message: str = "", status: int = 400) -> Operation:
    """Return an operation that answers with an error."""
    return lambda _: (status, {"__type": code, "message": message or code})


@contextmanager
def serve_aws(operations: Mapping[str, Operation]) -> Iterator[AwsEndpoint]:
    """Serve the operations on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            # Credential=KEY/DATE/REGION/SERVICE/aws4_request
            scope = self.headers.get("Authorization", "").partition("Credential=")[2].split("/")
            parameters = json.loads(body or b"{}")
            endpoint.requests.append((operation, scope[2] if len(scope) > 2 else "", parameters))
            status, answer = endpoint.operations[operation](parameters)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = AwsEndpoint(operations, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
