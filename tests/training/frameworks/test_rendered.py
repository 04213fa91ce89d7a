"""The pods that drivers make hold what the golden tables say, after the manifest's own."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.framework import Framework
from danlu.training.registry import framework_of, frameworks
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job
from tests.training.frameworks.cases import CASES
from tests.training.frameworks.clusters import Shown, injected, job_of, members_of, template


def shown(env: list[dict[str, Any]]) -> Shown:
    return [f"{one['name']}={one.get('value', _field(one))}" for one in env]


def _field(variable: dict[str, Any]) -> str:
    return f"<{variable['valueFrom']['fieldRef']['fieldPath']}>" if "valueFrom" in variable else ""


def rendered(framework: Framework, job: Job) -> dict[str, dict[str, Shown]]:
    """By replica and container, what the pods of a cluster have beyond the manifest's."""
    topology = ServiceTopology(job)
    found: dict[str, dict[str, Shown]] = {}
    for replica in members_of(job):
        pod = render_pod(job, framework, replica, topology)
        given = job.replicas[replica.type].template["spec"]["containers"]
        found[str(replica)] = {}
        for before, after in zip(given, pod["spec"]["containers"], strict=True):
            own, all = before.get("env", []), after.get("env", [])
            assert all[: len(own)] == own, "the manifest's variables come first"
            if framework.everywhere or after["name"] == framework.container:
                found[str(replica)][after["name"]] = shown(all[len(own) :])
            else:
                assert all == own
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_pods_of_a_cluster_hold_the_golden_variables(name: str) -> None:
    framework = framework_of(name)
    for job in CASES[name](framework).values():
        assert rendered(framework, job) == injected(framework, job)


@pytest.mark.parametrize("name", [one.name for one in frameworks()])
def test_pods_are_made_without_changing_the_template(name: str) -> None:
    framework = framework_of(name)
    pod = template(framework, sidecar="proxy")
    before = repr(pod)
    job = job_of(framework, dict.fromkeys(framework.types, 1), pod=pod)
    for replica in members_of(job):
        render_pod(job, framework, replica, ServiceTopology(job))
    assert repr(pod) == before
