"""``danlu train --dry-run -o argo``: Argo sees the end of jobs in what the operator writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings
from danlu.kube.manager import Manager
from danlu.kube.types import Manifest
from danlu.operator.types import runtime_resource
from danlu.submission.kind_conversion import convert_planned_job
from danlu.submission.options import TrainOptions
from danlu.submission.plan import format_documents, list_documents, plan_job
from danlu.training.train_job.schema import API_VERSION as TRAIN_JOB_API
from danlu.util.yaml_with_lines import read_yaml
from tests.operator.operator_namespace import OperatorNamespace, jobs

#: The keys of label selectors (k8s.io/apimachinery/pkg/labels), which name fields here.
KEY = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
#: Fields of Argo 4.0's schema (api/jsonschema/schema.json) that are used.
RESOURCE_FIELDS = {
    *("action", "failureCondition", "flags", "manifest", "manifestFrom", "mergeStrategy"),
    *("setOwnerReference", "successCondition"),
}


def render(settings: Settings, project: Path, *, kind: str = "", **fields: Any) -> dict[str, Any]:
    """Return the Workflow of a script."""
    (project / "train.py").write_text("import torch\n")
    options = TrainOptions(directory=project, script="train.py", image="example/train:1", **fields)
    planned = plan_job(options, settings=settings)
    if kind:
        planned, _ = convert_planned_job(planned, kind)
    return read_document(format_documents(list_documents(planned, "argo")))


def read_document(text: str) -> dict[str, Any]:
    ((value, _),) = read_yaml(text, "workflow.yaml")
    assert isinstance(value, dict)
    return value


def find_outcome(template: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return what Argo makes of a job, as ``matchConditions`` of its executor does."""
    resource = template["resource"]
    if any(_is_met(part, job) for part in resource["failureCondition"].split(",")):
        return "failed"
    parts = resource["successCondition"].split(",")
    return "succeeded" if all(_is_met(part, job) for part in parts) else "waiting"


def _is_met(requirement: str, job: Mapping[str, Any]) -> bool:
    path, equal, expected = map(str.strip, requirement.partition("=="))
    assert KEY.fullmatch(path)
    value: Any = job
    for name in path.split("."):
        if isinstance(value, list):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None and (not equal or value == expected)


def test_a_workflow_gives_each_of_its_runs_a_job(settings: Settings, tmp_path: Path) -> None:
    workflow = render(settings, tmp_path)
    (template,) = workflow["spec"]["templates"]
    job = read_document(template["resource"]["manifest"])
    assert workflow["apiVersion"] == "argoproj.io/v1alpha1"
    assert workflow["metadata"] == {"generateName": "train-"}
    assert workflow["spec"]["entrypoint"] == template["name"]
    assert template["resource"].keys() <= RESOURCE_FIELDS
    assert (template["resource"]["action"], template["resource"]["setOwnerReference"]) == (
        "create",
        True,
    )
    assert (job["kind"], job["metadata"]) == ("PyTorchJob", {"name": "{{workflow.name}}"})
    named = render(settings, tmp_path, name="digits")
    assert named["metadata"] == {"generateName": "digits-"}
    assert "name: digits\n" in named["spec"]["templates"][0]["resource"]["manifest"]


def test_a_workflow_creates_the_runtime_before_its_trainjob(
    settings: Settings, tmp_path: Path
) -> None:
    workflow = render(settings, tmp_path, kind="trainjob")
    steps, *templates = workflow["spec"]["templates"]
    runtime, job = (read_document(each["resource"]["manifest"]) for each in templates)
    assert workflow["spec"]["entrypoint"] == steps["name"]
    assert [[step["template"] for step in group] for group in steps["steps"]] == [
        [each["name"]] for each in templates
    ]
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "{{workflow.name}}"
    outputs = {each["name"]: each["valueFrom"] for each in templates[1]["outputs"]["parameters"]}
    assert outputs["metrics"]["jsonPath"] == "{.status.trainerStatus.metrics}"


async def create_job(site: OperatorNamespace, manifest: str) -> Manifest:
    """Create the object of a template, as Argo's executor does in a workflow called ``job``."""
    document = read_document(manifest.replace("{{workflow.name}}", "job"))
    document["metadata"]["namespace"] = site.space
    resource = jobs(document["kind"])
    return await site.client.create(resource, resource.to_manifest(document))


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "outcome"), [(0, "succeeded"), (1, "failed")])
@pytest.mark.parametrize("kind", ["v1", "trainjob"])
@pytest.mark.parametrize("queue", ["", "team"])
async def test_a_step_ends_with_its_job(
    site: OperatorNamespace,
    operator: Manager,
    settings: Settings,
    tmp_path: Path,
    kind: str,
    queue: str,
    code: int,
    outcome: str,
) -> None:
    workflow = render(settings, tmp_path, kind=kind, queue=queue)
    *objects, template = [each for each in workflow["spec"]["templates"] if "resource" in each]
    for each in objects:
        await create_runtime(site, each["resource"]["manifest"])
    job = await create_job(site, template["resource"]["manifest"])

    async def find() -> str:
        return find_outcome(template, await site.job(job["kind"]))

    async def is_over() -> bool:
        return await find() == outcome

    async def has_pods() -> bool:
        return bool(await site.pods())

    if queue:
        await site.wait_for_state("Suspended", job["kind"])
        assert await find() == "waiting"
        change = {"suspend": False}
        await site.change(
            {"spec": change if kind == "trainjob" else {"runPolicy": change}}, job["kind"]
        )
    await site.eventually(has_pods)
    await site.run()
    assert await find() == "waiting"
    await site.end(code=code)
    await site.eventually(is_over)


async def create_runtime(site: OperatorNamespace, manifest: str) -> None:
    document = read_document(manifest.replace("{{workflow.name}}", "job"))
    assert document["apiVersion"] == TRAIN_JOB_API
    document["metadata"]["namespace"] = site.space
    resource = runtime_resource("TrainingRuntime")
    await site.client.create(resource, resource.to_manifest(document))
