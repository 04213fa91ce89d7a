"""Pod templates read as by an API server (kube-apiserver 1.36, dry run), or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from danlu.errors import UsageError
from danlu.jobs.local.pod import PodContext, build_pod
from danlu.jobs.types import Submission
from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.types import ReplicaId, ReplicaType

#: Parts of a pod, and what the API server made of them: ``refused``, or fields with its defaults.
CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("pod_cases.json").read_text(encoding="utf-8")
)

TEMPLATE = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        metadata:
          annotations: {x: y}
%(metadata)s
        spec:
%(pod)s
          containers:
          - name: pytorch
            image: x
%(container)s
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_pod_template_is_read_as_by_the_api_server_or_refused(case: dict[str, Any]) -> None:
    text = TEMPLATE % {
        "metadata": indent(case.get("metadata", ""), " " * 10),
        "pod": indent(case.get("pod", ""), " " * 10),
        "container": indent(case.get("container", ""), " " * 12),
    }
    error = None
    try:
        job = read_job(read_manifest_file(text, "job.yaml").job, find_framework("pytorch"))
    except UsageError as refusal:
        error = refusal
    if error is not None:
        # The line of the field is named, and nothing else is wrong.
        assert "line" in str(error.details) or error.span is not None
        assert len(error.details) <= 2
        return
    right = case["right"]
    assert right != "refused"
    template = job.replicas[ReplicaType("Worker")].template
    spec = dict(template["spec"])
    found = {**spec, **spec["containers"][0], "init": spec.get("initContainers")}
    for field, expected in right.items():
        if field == "resources":  # without a request, the limit is one
            limits = found[field]["limits"]
            assert {name: str(value) for name, value in limits.items()} == expected["limits"]
        elif field == "terminationGracePeriodSeconds":
            worker = ReplicaId(ReplicaType("Worker"), 0)
            around = PodContext(
                worker, 0, mark="m", main="pytorch", host="h", address="127.0.0.1", hosts={}
            )
            assert build_pod(template, Submission(job, Path("/")), around).grace == expected
        else:
            assert found[field] == expected, field
