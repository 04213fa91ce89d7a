"""The addresses of a cluster's Services, as its EndpointSlices have them, for its pods to ask."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from danlu.kube.access import Access
from tests.kube.servers import TOKEN
from tests.operator.cluster.dns import serve_names

__all__ = ["has_storage", "names_of"]


def opener_of(access: Access) -> urllib.request.OpenerDirector:
    """What asks the API server, from any thread."""
    context = ssl.create_default_context(cadata=access.ca.decode())
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def has_storage(access: Access, node: str) -> bool:
    """Say that a node has room for what containers write; whether it was there to be told.

    The kubelet cannot tell it itself where the file system of its mounts is another's.
    """
    room = {"ephemeral-storage": "50Gi"}
    body = json.dumps({"status": {"capacity": room, "allocatable": room}}).encode()
    url = f"{access.server}/api/v1/nodes/{node}/status"
    request = urllib.request.Request(url, data=body, method="PATCH")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    request.add_header("Content-Type", "application/merge-patch+json")
    try:
        with opener_of(access).open(request, timeout=10):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise


@contextmanager
def names_of(access: Access, address: str) -> Iterator[None]:
    """Answer for the headless Services of a cluster at ``address``."""
    opener = opener_of(access)

    def lookup(service: str, namespace: str) -> list[str] | None:
        """None where there is no such Service with a pod."""
        label = urllib.parse.quote(f"kubernetes.io/service-name={service}")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        request = urllib.request.Request(f"{access.server}{path}?labelSelector={label}")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with opener.open(request, timeout=10) as answer:
                items = json.load(answer)["items"]
        except urllib.error.URLError:
            return None
        ends = [end for item in items for end in item["endpoints"] or ()]
        ready = [end for end in ends if end["conditions"].get("ready", True)]
        return [one for end in ready for one in end["addresses"]] or None

    with serve_names(address, lookup):
        yield
