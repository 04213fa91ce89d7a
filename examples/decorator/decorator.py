"""A pod decorator: a small server that applies the rules of a cluster to every training pod.

danlu's operator POSTs {"job": …, "pod": …} here before it creates a pod, and applies the JSON
patch (RFC 6902) in the response. Only Python's standard library is needed.
"""

import json
import os
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def decorate(job, pod):
    """Yield the JSON patch operations for one pod."""
    spec = pod["spec"]
    team = job["metadata"].get("labels", {}).get("team", "shared")
    yield from tolerate_gpus(spec)
    yield from share_memory(spec)
    if "priorityClassName" not in spec:
        yield {"op": "add", "path": "/spec/priorityClassName", "value": f"training-{team}"}


def tolerate_gpus(spec):
    """Let pods that request GPUs run on the nodes reserved for them."""
    asked = [container.get("resources", {}).get("limits", {}) for container in spec["containers"]]
    if any("nvidia.com/gpu" in limits for limits in asked):
        tolerations = [
            *spec.get("tolerations", []),
            {"key": "nvidia.com/gpu", "operator": "Exists"},
        ]
        yield {"op": "add", "path": "/spec/tolerations", "value": tolerations}


def share_memory(spec):
    """Give data loaders more than the 64 MB of /dev/shm that a container has."""
    if any(volume["name"] == "shm" for volume in spec.get("volumes", [])):
        return
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    yield {"op": "add", "path": "/spec/volumes", "value": [*spec.get("volumes", []), volume]}
    for number, container in enumerate(spec["containers"]):
        mount = {"name": "shm", "mountPath": "/dev/shm"}
        mounts = [*container.get("volumeMounts", []), mount]
        path = f"/spec/containers/{number}/volumeMounts"
        yield {"op": "add", "path": path, "value": mounts}


class Handler(BaseHTTPRequestHandler):
    """Handles the operator's requests."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"patch": list(decorate(asked["job"], asked["pod"]))}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main():
    """Serve on the port in the first argument, with TLS if CERTIFICATE names a PEM file."""
    server = ThreadingHTTPServer(("", int(sys.argv[1])), Handler)
    if os.environ.get("CERTIFICATE"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.environ["CERTIFICATE"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
