"""Users on a real server that have exactly the permissions of the manifests."""

from __future__ import annotations

import itertools
from typing import Any

from danlu.kube.client import Client
from danlu.kube.resources import ROLE_BINDINGS, ROLES, Resource
from danlu.kube.types import Manifest
from danlu.operator.rbac import operator_rules
from danlu.operator.types import OperatorSettings
from danlu.training.registry import list_kinds
from tests.kube.objects import eventually

USER = "operator"
MARK = "danlu.test/rights"
_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    Manifest,
    namespaced=False,
)
_GROUP = "rbac.authorization.k8s.io"
_CLUSTER_ROLES = Resource(_GROUP, "v1", "clusterroles", "ClusterRole", Manifest, namespaced=False)
_CLUSTER_ROLE_BINDINGS = Resource(
    _GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding", Manifest, namespaced=False
)
_numbers = itertools.count(1)


async def grant(client: Client, operator: Client, settings: OperatorSettings) -> None:
    """Let the user of ``operator`` do in the settings' namespace what an operator needs there.

    Rights in the operator's own namespace are given there too: in tests it is the same.
    """
    space = settings.namespace
    needed = operator_rules(list_kinds(settings.kinds, settings.versions), settings)
    rules = [*needed.jobs, *needed.own]
    await _create_binding(client, ROLES, ROLE_BINDINGS, space, rules)
    if needed.cluster:
        await _create_binding(
            client, _CLUSTER_ROLES, _CLUSTER_ROLE_BINDINGS, "", list(needed.cluster)
        )

    async def effective_rules() -> bool:
        return all(
            [await _check_access(operator, space, rule) for rule in (*rules, *needed.cluster)]
        )

    # The server learns of a role a moment after it was made.
    await eventually(effective_rules)


async def _create_binding(
    client: Client,
    roles: Resource[Manifest],
    bindings: Resource[Manifest],
    space: str,
    rules: list[Manifest],
) -> None:
    name = f"operator-{next(_numbers)}"
    location = {"namespace": space} if space else {}
    metadata = {"name": name, **location, "labels": {MARK: "yes"}}
    await client.create(roles, roles.to_manifest({"metadata": metadata, "rules": rules}))
    binding = {
        "metadata": metadata,
        "subjects": [{"kind": "User", "name": USER, "apiGroup": _GROUP}],
        "roleRef": {"apiGroup": _GROUP, "kind": roles.kind, "name": name},
    }
    await client.create(bindings, bindings.to_manifest(binding))


async def _check_access(operator: Client, space: str, rule: dict[str, Any]) -> bool:
    resource, _, subresource = rule["resources"][0].partition("/")
    attributes = {
        "namespace": space,
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "verb": rule["verbs"][0],
        "name": (rule.get("resourceNames") or [""])[0],
    }
    review = _REVIEWS.to_manifest({"spec": {"resourceAttributes": attributes}})
    result = await operator.create(_REVIEWS, review)
    return bool(result["status"]["allowed"])
