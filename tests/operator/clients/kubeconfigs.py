"""Kubeconfigs for other clients of a server."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from danlu.kube.config import ClusterConfig
from tests.kube.servers import TOKEN

__all__ = ["kubeconfig"]


def kubeconfig(
    access: ClusterConfig, path: Path, *, namespace: str = "default", token: str = TOKEN
) -> Path:
    """A kubeconfig of the tests' own user, or of whose ``token`` it is."""
    cluster: dict[str, object] = {"server": access.server}
    if access.ca:
        cluster["certificate-authority-data"] = b64encode(access.ca).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": {"token": token}}],
        "contexts": [
            {
                "name": "one",
                "context": {"cluster": "one", "user": "one", "namespace": namespace},
            }
        ],
    }
    # JSON is YAML.
    path.write_text(json.dumps(config))
    return path
