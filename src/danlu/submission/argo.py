"""The Argo Workflow that submits a job, waits for its end, and outputs its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from danlu.training.registry import TRAIN_JOB
from danlu.util.yaml_with_lines import dump_yaml

#: What Argo replaces by the name of the workflow, which is unique.
WORKFLOW_NAME = "{{workflow.name}}"

_MAX_CONDITIONS = 8


def build_workflow(documents: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, Any]:
    """Return a Workflow that creates ``documents``, the last of which is the job, in their order.

    Its name begins with ``prefix``. All are deleted with the workflow.
    """
    *objects, job = documents
    templates = [
        _resource_template(f"object-{number}", document, "apply")
        for number, document in enumerate(objects, 1)
    ]
    train = _resource_template("train", job, "create")
    train["resource"] |= _job_conditions(job)
    train["outputs"] = {"parameters": _output_parameters(job)}
    templates.append(train)
    if objects:
        steps = [[{"name": each["name"], "template": each["name"]}] for each in templates]
        templates.insert(0, {"name": "main", "steps": steps})
    namespace = {key: job["metadata"][key] for key in ("namespace",) if key in job["metadata"]}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": prefix, **namespace},
        "spec": {"entrypoint": templates[0]["name"], "templates": templates},
    }


def _resource_template(name: str, document: Mapping[str, Any], action: str) -> dict[str, Any]:
    resource = {"action": action, "setOwnerReference": True, "manifest": dump_yaml(document)}
    return {"name": name, "resource": resource}


def _job_conditions(job: Mapping[str, Any]) -> dict[str, str]:
    """Return when the job succeeded or failed, in the syntax of label selectors.

    Such a selector cannot search a list. A step fails if any requirement of its failure condition
    is met, which Argo looks at first, and succeeds if all of its success condition are.
    """
    types = [f"status.conditions.{number}.type" for number in range(_MAX_CONDITIONS)]
    if job["kind"] == TRAIN_JOB.kind:
        # It has no completion time. A job that waits in a queue has been suspended before.
        success = f"{types[1 if job['spec'].get('suspend') else 0]} == Complete"
    else:
        success = "status.completionTime"
    return {
        "successCondition": success,
        "failureCondition": ",".join(f"{type} == Failed" for type in types),
    }


def _output_parameters(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = {"job": "{.metadata.name}"}
    if job["kind"] == TRAIN_JOB.kind:
        fields["metrics"] = "{.status.trainerStatus.metrics}"
    return [
        {"name": name, "valueFrom": {"jsonPath": path, "default": ""}}
        for name, path in fields.items()
    ]
