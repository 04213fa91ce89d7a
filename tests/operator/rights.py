"""Operators on a real server are somebody who may do what the manifests give, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

from danlu.kube.client import Client
from danlu.kube.resources import ROLE_BINDINGS, ROLES, Resource
from danlu.kube.types import Document
from danlu.operator.rbac import rights
from danlu.operator.types import OperatorSettings
from danlu.training.registry import frameworks
from tests.kube.objects import eventually

USER = "operator"
MARK = "danlu.test/rights"
_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    Document,
    namespaced=False,
)
_numbers = itertools.count(1)


async def grant(client: Client, operator: Client, settings: OperatorSettings) -> None:
    """Let the user of ``operator`` do in the settings' namespace what an operator needs there.

    Rights in the operator's own namespace are given there too: in tests it is the same.
    """
    space = settings.namespace
    needed = rights(frameworks(), settings)
    rules = [*needed.jobs, *needed.own]
    name = f"operator-{next(_numbers)}"
    metadata = {"name": name, "namespace": space, "labels": {MARK: "yes"}}
    await client.create(ROLES, ROLES.document({"metadata": metadata, "rules": rules}))
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": metadata,
        "subjects": [{"kind": "User", "name": USER, "apiGroup": group}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
    }
    await client.create(ROLE_BINDINGS, ROLE_BINDINGS.document(binding))

    async def effective() -> bool:
        return all([await _may(operator, space, rule) for rule in rules])

    # The server learns of a role a moment after it was made.
    await eventually(effective)


async def _may(operator: Client, space: str, rule: dict[str, Any]) -> bool:
    resource, _, subresource = rule["resources"][0].partition("/")
    attributes = {
        "namespace": space,
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "verb": rule["verbs"][0],
        "name": (rule.get("resourceNames") or [""])[0],
    }
    review = _REVIEWS.document({"spec": {"resourceAttributes": attributes}})
    found = await operator.create(_REVIEWS, review)
    return bool(found["status"]["allowed"])
