"""The claims that JobSet creates for a runtime's ``volumeClaimPolicies``.

A template becomes the claim ``TEMPLATE-JOB``, and a volume of every pod that mounts its name
(``pkg/controllers/volume_claim_policy.go``). The rules are those of JobSet's webhook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from danlu.training.framework import FieldError, PodTemplate
from danlu.training.frameworks.train_job import POLICIES_FIELD, name_claim
from danlu.training.pod_template import append_to, list_mounted_names, pod_spec, replace_spec

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_CLAIM_NAME = 63


def check_volume_claims(job_set: Mapping[str, Any], job: str) -> Iterator[FieldError]:
    """Yield what JobSet refuses in the claims of a job with this name."""
    pods = [each["template"]["spec"]["template"] for each in job_set["replicatedJobs"]]
    mounted = {name for pod in pods for name in list_mounted_names(pod)}
    root, names = f"spec.template.spec.{POLICIES_FIELD}", list[str]()
    for index, policy in enumerate(job_set.get(POLICIES_FIELD) or ()):
        for number, template in enumerate(policy.get("templates") or ()):
            path = f"{root}[{index}].templates[{number}].metadata"
            name = str(template["metadata"].get("name") or "")
            if template["metadata"].get("namespace"):
                yield FieldError(f"{path}.namespace", "must not be set")
            if name in names:
                yield FieldError(f"{path}.name", f"duplicate template {name}")
            if not _SUBDOMAIN.fullmatch(name) or len(name_claim(name, job)) > _MAX_CLAIM_NAME:
                message = f"cannot be '{name}': the claim would be called {name_claim(name, job)}"
                yield FieldError(f"{path}.name", message, "use a short name in lowercase letters")
            elif name not in mounted:
                message = f"no container of a replicated job has a volumeMount '{name}'"
                yield FieldError(f"{path}.name", message)
            names.append(name)
    for index, pod in enumerate(pods):
        for number, volume in enumerate(pod_spec(pod).get("volumes") or ()):
            if volume["name"] in names:
                place = f"spec.template.spec.replicatedJobs[{index}].template.spec.template.spec"
                message = f"conflicts with the template '{volume['name']}' of {POLICIES_FIELD}"
                yield FieldError(f"{place}.volumes[{number}].name", message)


def add_claim_volumes(
    template: PodTemplate, policies: Sequence[Mapping[str, Any]], job: str
) -> PodTemplate:
    """Return the template with a volume for each claim that its containers mount."""
    mounted = list_mounted_names(template)
    volumes = [_claim_volume(name, job) for name in _list_names(policies) if name in mounted]
    return (
        replace_spec(template, append_to(pod_spec(template), "volumes", *volumes))
        if volumes
        else template
    )


def remove_claim_volumes(
    template: PodTemplate, policies: Sequence[Mapping[str, Any]], job: str
) -> PodTemplate:
    """Return the template as :func:`add_claim_volumes` took it."""
    spec = pod_spec(template)
    added = [_claim_volume(name, job) for name in _list_names(policies)]
    volumes = [volume for volume in spec.get("volumes") or () if volume not in added]
    if len(volumes) == len(spec.get("volumes") or ()):
        return template
    kept = {name: value for name, value in spec.items() if name != "volumes"}
    return {**template, "spec": {**kept, "volumes": volumes} if volumes else kept}


def select_policies(
    policies: Sequence[Mapping[str, Any]], templates: Sequence[PodTemplate], job: str
) -> list[Mapping[str, Any]]:
    """Return the policies with the claims that a template still has as volumes."""
    volumes = [volume for each in templates for volume in pod_spec(each).get("volumes") or ()]
    selected: list[Mapping[str, Any]] = []
    for policy in policies:
        used = [
            template
            for template in policy.get("templates") or ()
            if _claim_volume(template["metadata"]["name"], job) in volumes
        ]
        if used:
            selected.append({**policy, "templates": used})
    return selected


def _list_names(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        template["metadata"]["name"]
        for policy in policies
        for template in policy.get("templates") or ()
    ]


def _claim_volume(name: str, job: str) -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": name_claim(name, job)}}
