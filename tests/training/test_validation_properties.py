"""Any manifest gives a job or a list of findings, never another error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.training.manifest import read_job, write_job
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job, ReplicaId
from tests.training.manifests import KINDS, find_mistakes, framework, manifest

FULL: dict[str, Any] = {
    "runPolicy": {
        "cleanPodPolicy": "All",
        "backoffLimit": 1,
        "suspend": False,
        "schedulingPolicy": {"minAvailable": 1, "queue": "q", "minResources": {"cpu": 1}},
    },
    "elasticPolicy": {"minReplicas": 1, "rdzvConf": [{"key": "a", "value": "b"}], "metrics": [{}]},
    "nprocPerNode": "2",
    "slotsPerWorker": 1,
    "mainContainer": "mpi",
    "successPolicy": "AllWorkers",
    "enableDynamicWorker": True,
    "jobMode": "MXTrain",
}
POD: dict[str, Any] = {
    "env": [{"name": "A", "value": "b"}],
    "ports": [{"name": "p", "containerPort": 1}],
    "resources": {"limits": {"memory": "1Gi"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
# As JSON, so that every use gets its own copy.
JUNK = st.sampled_from(
    [
        *("null", "true", "0", "-1", "1.5", "123456789012", '""', '"x"', '"Worker"', '{"x": null}'),
        *("[]", "[null]", '["x"]', "{}", "[{}]"),
    ]
)


def full(kind: str) -> dict[str, Any]:
    """Return a valid job of this kind with all fields set."""
    document = manifest(kind)
    known = (*framework(kind).spec_options, "runPolicy")
    document["spec"] |= {name: value for name, value in FULL.items() if name in known}
    document["metadata"] |= {"namespace": "a", "labels": {"b": "c"}, "annotations": {"d": "e"}}
    for spec in document["spec"][framework(kind).replicas_field].values():
        spec["template"]["metadata"] = {"labels": {"f": "g"}}
        spec["template"]["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        spec["template"]["spec"]["containers"][0] |= POD
    document["status"] = {"conditions": [], "startTime": None}
    copied: dict[str, Any] = json.loads(json.dumps(document))
    return copied


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place below ``value`` as its container and key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    own = [(value, key) for key in keys]
    inner = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return own + [place for child in inner for place in places(child)]


@st.composite
def damaged_documents(draw: st.DrawFn) -> dict[str, Any]:
    document = full(draw(st.sampled_from(sorted(KINDS))))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(places(document)))
        holder[key] = json.loads(draw(JUNK))
    return document


def test_unmodified_documents_have_no_findings() -> None:
    for kind in KINDS:
        assert find_mistakes(full(kind), framework(kind)) == ()


@settings(deadline=None, max_examples=120)
@given(damaged_documents(), st.sampled_from(sorted(KINDS)))
def test_any_manifest_is_a_job_or_has_findings(document: dict[str, Any], kind: str) -> None:
    named = document["kind"]
    it = framework(named if isinstance(named, str) and named in KINDS else kind)
    findings = find_mistakes(document, it)
    if findings:
        assert findings == tuple(sorted(set(findings)))
        assert all(finding.path and finding.message for finding in findings)
    else:
        job = read_job(document, it)
        assert read_job(write_job(job, it), it) == job
        _render_all_pods(job)


def _render_all_pods(job: Job) -> None:
    it = framework(job.kind)
    for type, spec in job.replicas.items():
        if spec.replicas:
            pod = render_pod(job, it, ReplicaId(type, 0), ServiceTopology(job, it))
            assert pod["spec"]["containers"]
