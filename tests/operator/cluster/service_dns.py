"""The names and the addresses of a cluster's Services, as its objects have them, for its pods."""

from __future__ import annotations

import json
import random
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from danlu.kube.config import ClusterConfig
from tests.kube.servers import TOKEN
from tests.operator.cluster.dns import serve_names
from tests.operator.cluster.forwarding import forwarding
from tests.operator.cluster.node import ClusterNode

__all__ = ["ServiceTable", "has_storage", "names_of"]


def opener_of(access: ClusterConfig) -> urllib.request.OpenerDirector:
    """Return an opener for requests to the API server, usable from any thread."""
    context = ssl.create_default_context(cadata=access.ca.decode())
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def has_storage(access: ClusterConfig, node: str) -> bool:
    """Report that a node has disk space; return whether the node exists.

    The kubelet cannot tell it itself where the file system of its mounts is another's.
    """
    room = {"ephemeral-storage": "50Gi"}
    body = json.dumps({"status": {"capacity": room, "allocatable": room}}).encode()
    url = f"{access.server}/api/v1/nodes/{node}/status"
    request = urllib.request.Request(url, data=body, method="PATCH")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    request.add_header("Content-Type", "application/merge-patch+json")
    try:
        with opener_of(access).open(request, timeout=60):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise


class ServiceTable:
    """The Services of a cluster, as its DNS and its proxies see them.

    They are served from the first lookup of their name on: the node has no kube-proxy.
    """

    def __init__(self, access: ClusterConfig, node: ClusterNode, stack: ExitStack) -> None:
        self._access = access
        self._opener = opener_of(access)
        self._node = node
        self._stack = stack
        self._served = {node.server}
        self._hidden: set[str] = set()

    @contextmanager
    def hide(self, name: str) -> Iterator[None]:
        """Answer for the Services of one name as if they did not exist yet."""
        self._hidden.add(name)
        try:
            yield
        finally:
            self._hidden.remove(name)

    def lookup(self, name: str, namespace: str, host: str = "") -> list[str] | None:
        """Return the addresses of a Service, or of its pod with a host name; None without any."""
        if name in self._hidden:
            return None
        try:
            result = self._get_json(f"/api/v1/namespaces/{namespace}/services/{name}")
            address = result["spec"].get("clusterIP", "None")
            if address == "None":
                return self._list_addresses(name, namespace, host) or None
            if host:
                return None
            if address not in self._served:
                self._serve_service(result, address)
        except urllib.error.URLError:
            return None
        return [address]

    def _serve_service(self, service: dict[str, Any], address: str) -> None:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        self._served.add(address)
        self._node.add_address(address)
        for port in service["spec"]["ports"]:

            def to(port: dict[str, Any] = port) -> tuple[str, int]:
                return self._one_of(name, namespace, port.get("name", ""))

            self._stack.enter_context(forwarding(address, port["port"], to=to))

    def _one_of(self, name: str, namespace: str, port: str) -> tuple[str, int]:
        """Return a ready pod and its port; raises :class:`OSError` if there is none."""
        slices = self._list_slices(name, namespace)
        results = [
            (address, named_port["port"])
            for part in slices
            for named_port in part["ports"] or ()
            if named_port["name"] == port
            for address in _ready_addresses(part)
        ]
        if not results:
            raise ConnectionRefusedError(f"no pod of {name} is ready")
        return random.choice(results)

    def _list_addresses(self, name: str, namespace: str, host: str) -> list[str]:
        return [
            address
            for part in self._list_slices(name, namespace)
            for address in _ready_addresses(part, host)
        ]

    def _list_slices(self, name: str, namespace: str) -> list[dict[str, Any]]:
        label = urllib.parse.quote(f"kubernetes.io/service-name={name}")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        results: list[dict[str, Any]] = self._get_json(f"{path}?labelSelector={label}")["items"]
        return results

    def _get_json(self, path: str) -> Any:
        request = urllib.request.Request(f"{self._access.server}{path}")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with self._opener.open(request, timeout=60) as answer:
            return json.load(answer)


def _ready_addresses(part: dict[str, Any], host: str = "") -> list[str]:
    ready = [
        endpoint
        for endpoint in part["endpoints"] or ()
        if endpoint["conditions"].get("ready", True) and host in ("", endpoint.get("hostname"))
    ]
    return [address for endpoint in ready for address in endpoint["addresses"]]


@contextmanager
def names_of(access: ClusterConfig, node: ClusterNode) -> Iterator[ServiceTable]:
    """Answer for the Services of a cluster, which the pods of ``node`` reach."""
    with ExitStack() as stack:
        services = ServiceTable(access, node, stack)
        with serve_names(node.gateway, services.lookup):
            yield services
