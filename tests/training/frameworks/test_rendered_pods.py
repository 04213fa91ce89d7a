"""Rendered pods contain the variables of the golden tables, after those of the manifest."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.framework import Framework
from danlu.training.registry import find_framework, list_frameworks
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job
from tests.training.frameworks.cases import CASES
from tests.training.frameworks.topology import (
    Shown,
    job_of,
    members_of,
    render_added_variables,
    template,
)


def format_variables(env: list[dict[str, Any]]) -> Shown:
    return [
        f"{variable['name']}={variable.get('value', _format_field(variable))}" for variable in env
    ]


def _format_field(variable: dict[str, Any]) -> str:
    return f"<{variable['valueFrom']['fieldRef']['fieldPath']}>" if "valueFrom" in variable else ""


def render_variables(framework: Framework, job: Job) -> dict[str, dict[str, Shown]]:
    """Return the variables added to cluster pods, by replica and container."""
    topology = ServiceTopology(job, framework)
    results: dict[str, dict[str, Shown]] = {}
    for replica in members_of(job):
        pod = render_pod(job, framework, replica, topology)
        value = job.replicas[replica.type].template["spec"]["containers"]
        results[str(replica)] = {}
        for before, after in zip(value, pod["spec"]["containers"], strict=True):
            own, all = before.get("env", []), after.get("env", [])
            assert all[: len(own)] == own, "the manifest's variables come first"
            if framework.env_in_all_containers or after["name"] == framework.container:
                results[str(replica)][after["name"]] = format_variables(all[len(own) :])
            else:
                assert all == own
    return results


@pytest.mark.parametrize("name", sorted(CASES))
def test_cluster_pods_contain_the_golden_variables(name: str) -> None:
    framework = find_framework(name)
    for job in CASES[name](framework).values():
        assert render_variables(framework, job) == render_added_variables(framework, job)


@pytest.mark.parametrize("name", [framework.name for framework in list_frameworks()])
def test_rendering_does_not_change_the_template(name: str) -> None:
    framework = find_framework(name)
    pod = template(framework, sidecar="proxy")
    before = repr(pod)
    job = job_of(framework, dict.fromkeys(framework.replica_types, 1), pod=pod)
    for replica in members_of(job):
        render_pod(job, framework, replica, ServiceTopology(job, framework))
    assert repr(pod) == before
