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

__all__ = ["names_of"]


@contextmanager
def names_of(access: Access, address: str) -> Iterator[None]:
    """Answer for the headless Services of a cluster at ``address``."""
    context = ssl.create_default_context(cadata=access.ca.decode())
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )

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
