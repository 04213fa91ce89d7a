"""Test the framework without installing it or starting a process."""

from collections.abc import Mapping
from typing import Any

import pytest
from danlu_lightgbm import FRAMEWORK, WORKER

from danlu.errors import UsageError
from danlu.operator.crds import custom_resource_definition
from danlu.training.framework import ReplicaCounts
from danlu.training.manifest import read_job
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import ConditionType, Job, ReplicaId


def job(*, env: Mapping[str, str] | None = None, **spec: Any) -> Job:
    """Return a job with two workers, parsed from a manifest."""
    container = {
        "name": "lightgbm",
        "image": "example/lightgbm:1",
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
    }
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "LightGBMJob",
        "metadata": {"name": "trees"},
        "spec": {"lightgbmReplicaSpecs": {"worker": worker}, **spec},
    }
    return read_job(document, FRAMEWORK)


def variables(of: Job, index: int) -> dict[str, str]:
    pod = render_pod(of, FRAMEWORK, ReplicaId(WORKER, index), ServiceTopology(of, FRAMEWORK))
    (container,) = pod["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def test_every_worker_gets_the_list_of_all_machines() -> None:
    assert variables(job(), 1) == {
        "LIGHTGBM_MACHINES": "trees-worker-0:12400,trees-worker-1:12400",
        "LIGHTGBM_NUM_MACHINES": "2",
        "LIGHTGBM_LOCAL_LISTEN_PORT": "12400",
        "LIGHTGBM_RANK": "1",
    }


def test_variables_of_the_manifest_take_precedence() -> None:
    assert variables(job(env={"LIGHTGBM_RANK": "7"}), 1)["LIGHTGBM_RANK"] == "7"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (ReplicaCounts(expected=2, active=2), ConditionType.RUNNING),
        (ReplicaCounts(expected=2, active=1, succeeded=1), ConditionType.SUCCEEDED),
        (ReplicaCounts(expected=2, active=1, failed=1), ConditionType.FAILED),
        (ReplicaCounts(expected=2, active=1, restarting=1), ConditionType.RESTARTING),
    ],
)
def test_workers_decide_the_outcome(counts: ReplicaCounts, expected: ConditionType) -> None:
    verdict = FRAMEWORK.evaluate(job(), {WORKER: counts})
    assert verdict
    assert verdict.condition == expected


def test_the_number_of_workers_can_be_scaled() -> None:
    (version,) = custom_resource_definition(FRAMEWORK)["spec"]["versions"]
    path = ".spec.lightgbmReplicaSpecs.Worker.replicas"
    assert version["subresources"]["scale"]["specReplicasPath"] == path


def test_unknown_tree_learner_is_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        job(treeLearner="serial")
    assert "spec.treeLearner" in " ".join((caught.value.message, *caught.value.details))
