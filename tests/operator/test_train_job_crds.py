"""The CRDs of TrainJobs and runtimes have the rules of Kubeflow Trainer's.

``trainer_crds.json`` was recorded from ``manifests/base/crds`` of kubeflow/trainer at 8c0f5059
(2026-08-21): names, scope, columns, and the rules of each field by its path, without those of
Kubernetes' own types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.operator.crds import custom_resource_definitions
from danlu.operator.installation import list_runtimes
from danlu.training.names import STATUS_FIELD
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.reader import validate_runtime

RECORDED = msgspec.json.decode(Path(__file__).with_name("trainer_crds.json").read_bytes())
DEFINITIONS = {
    definition["spec"]["names"]["kind"]: definition["spec"]
    for definition in custom_resource_definitions([TRAIN_JOB])
}
RULES = (
    *("type", "format", "enum", "default", "pattern", "required", "x-kubernetes-validations"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties"),
    *("maxProperties", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
)
#: What Kubernetes' own types have inside is preserved, and not described.
FOREIGN = (
    *(".metadata", ".valueFrom", ".affinity", ".securityContext.", ".tolerations[]"),
    *(".volumes[].", ".volumeMounts[].", ".claims[].", ".volumeClaimPolicies[].templates[]"),
)
JOB_TEMPLATE = ".spec.template.spec.replicatedJobs[].template"


def collect_rules(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    if any(part in path for part in FOREIGN) or path.startswith(JOB_TEMPLATE):
        return
    if rules := {name: schema[name] for name in RULES if name in schema}:
        yield path, rules
    for name, field in (schema.get("properties") or {}).items():
        yield from collect_rules(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), Mapping):
            yield from collect_rules(schema[key], path + mark)


@pytest.mark.parametrize("kind", sorted(RECORDED))
def test_rules_are_those_of_kubeflow_trainer(kind: str) -> None:
    (version,) = DEFINITIONS[kind]["versions"]
    found = msgspec.json.decode(msgspec.json.encode(version))
    rules = dict(collect_rules(found.pop("schema")["openAPIV3Schema"]))
    rules.pop(f".status.{STATUS_FIELD}", None)
    assert rules == RECORDED[kind]["rules"]
    assert found == RECORDED[kind]["version"]
    assert DEFINITIONS[kind]["names"] == RECORDED[kind]["names"]
    assert DEFINITIONS[kind]["scope"] == RECORDED[kind]["scope"]


def test_definitions_are_small_enough_for_plain_apply() -> None:
    assert all(len(msgspec.json.encode(spec)) < 30_000 for spec in DEFINITIONS.values())


def test_the_installed_runtimes_are_those_that_the_operator_runs() -> None:
    runtimes = list_runtimes()
    for runtime in runtimes:
        validate_runtime(runtime)
    names = [runtime["metadata"]["name"] for runtime in runtimes]
    assert names[:1] == ["torch-distributed"]
    assert "deepspeed-distributed" in names
