"""MPIJobs of the MPI operator's version on a cluster are found as all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from danlu.jobs.backends import list_views
from danlu.jobs.kubernetes.objects import job_resource
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.operator.crds import custom_resource_definition
from danlu.training.registry import choose_version, find_framework
from tests.jobs.kubernetes.support import JobNamespace, site_of

pytestmark = pytest.mark.anyio
V2BETA1 = choose_version(find_framework("MPIJob"), "v2beta1")
JOBS = job_resource(V2BETA1).with_model(dict[str, Any])


@pytest.fixture
async def site_alone() -> AsyncIterator[JobNamespace]:
    """A cluster whose jobs nobody runs."""
    async with site_of(operator=False) as site:
        yield site


async def test_a_job_of_another_version_is_found(site_alone: JobNamespace) -> None:
    definition = custom_resource_definition(V2BETA1)
    await site_alone.client.delete(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"])
    await site_alone.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    template = {"spec": {"containers": [{"name": "pi", "image": "example/pi:1"}]}}
    specs = {"Launcher": {"template": template}, "Worker": {"replicas": 2, "template": template}}
    metadata = {"name": "pi", "namespace": site_alone.space}
    document = JOBS.to_manifest({"metadata": metadata, "spec": {"mpiReplicaSpecs": specs}})
    await site_alone.client.create(JOBS, document)
    (listed,) = await list_views(site_alone.jobs, lambda text: None)
    assert (listed.name, listed.kind) == ("pi", "MPIJob")
    shown = await site_alone.jobs.view("pi")
    replicas = [str(replica.id) for replica in shown.replicas]
    assert replicas == ["launcher-0", "worker-0", "worker-1"]
    await site_alone.jobs.suspend("pi", suspended=True)
    found = await site_alone.client.get(JOBS, "pi", namespace=site_alone.space)
    assert found["spec"]["runPolicy"]["suspend"]
