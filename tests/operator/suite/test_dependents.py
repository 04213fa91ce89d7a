"""Dependent objects of jobs: MPI's files and roles, PodGroups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
)
from danlu.kube.types import Manifest
from danlu.operator.gang_scheduling import pod_group_resource
from tests.kube.objects import config_map, eventually
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio
VOLCANO = pod_group_resource("volcano").with_model(Manifest)
PLUGINS = pod_group_resource("scheduler-plugins-scheduler").with_model(Manifest)


async def test_an_mpi_job_has_its_files_and_the_right_to_reach_its_workers(
    site: OperatorNamespace, operator: Manager
) -> None:
    document = await site.submit("MPIJob", spec={"slotsPerWorker": 2}, Launcher=1, Worker=2)
    await site.wait_for_pods("job-launcher", "job-worker-0", "job-worker-1")
    assert await site.services() == []
    (files,) = [
        config_map
        for config_map in await site.all_of(CONFIG_MAPS)
        if "hostfile" in config_map["data"]
    ]
    assert files["metadata"]["name"] == "job-config"
    assert files["data"]["hostfile"] == "job-worker-0 slots=2\njob-worker-1 slots=2\n"
    (role,) = await site.all_of(ROLES)
    assert {"pods/exec"} in [set(rule["resources"]) for rule in role["rules"]]
    (execute,) = [rule for rule in role["rules"] if rule["resources"] == ["pods/exec"]]
    assert execute["resourceNames"] == ["job-worker-0", "job-worker-1"]
    (binding,) = await site.all_of(ROLE_BINDINGS)
    assert binding["subjects"][0]["name"] == "job-launcher"
    accounts = [account["metadata"]["name"] for account in await site.all_of(SERVICE_ACCOUNTS)]
    assert "job-launcher" in accounts
    assert (await site.pod("job-launcher"))["spec"]["serviceAccountName"] == "job-launcher"
    for obj in (files, role, binding):
        assert obj["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]


async def test_the_list_of_hosts_follows_the_workers_that_run(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("MPIJob", Launcher=1, Worker=2)
    await site.wait_for_pods("job-launcher", "job-worker-0", "job-worker-1")

    async def expect_messages(*names: str) -> None:
        text = "#!/bin/sh" + "".join(f"\necho {name}:1" for name in names)

        async def there() -> bool:
            result = await site.client.get(CONFIG_MAPS, "job-config", namespace=site.space)
            return bool(result["data"]["discover_hosts.sh"] == text)

        await site.eventually(there)

    await expect_messages()
    await site.run("job-worker-1")
    await expect_messages("job-worker-1")
    await site.run("job-worker-0")
    await expect_messages("job-worker-0", "job-worker-1")


async def test_a_launcher_keeps_its_own_service_account(
    site: OperatorNamespace, operator: Manager
) -> None:
    container = {"name": "mpi", "image": "example/train:1"}
    spec = {"containers": [container], "serviceAccountName": "mine"}
    launcher = {"Launcher": {"replicas": 1, "template": {"spec": spec}}}
    await site.submit("MPIJob", spec={"mpiReplicaSpecs": launcher})
    await site.wait_for_pods("job-launcher")
    (binding,) = await site.all_of(ROLE_BINDINGS)
    assert binding["subjects"][0]["name"] == "mine"
    names = [account["metadata"]["name"] for account in await site.all_of(SERVICE_ACCOUNTS)]
    assert "job-launcher" not in names


async def test_a_config_map_that_is_not_the_jobs_is_not_changed(site: OperatorNamespace) -> None:
    await site.client.create(CONFIG_MAPS, config_map("job-config", site.space, mine="1"))
    async with site.operator_runs():
        await site.submit("MPIJob", Launcher=1, Worker=1)
        assert "job-config already exists" in await site.wait_for_event("FailedCreateConfigMap")
        assert await site.pods() == []
        await site.delete("job-config", CONFIG_MAPS)
        await site.wait_for_pods("job-launcher", "job-worker-0")


# -- gangs


async def create_podgroup_crd(client: Client, group: Resource[Manifest]) -> None:
    """The definition of a scheduler's PodGroup, as far as it matters here."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": group.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
    }
    name = f"podgroups.{group.group}"
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"}
    document: Manifest = {
        "metadata": {"name": name},
        "spec": {"group": group.group, "scope": "Namespaced", "names": names},
    }
    document["spec"]["versions"] = [version]
    if group.group.endswith("k8s.io"):
        # The server wants to know who approved of the name.
        document["metadata"]["annotations"] = {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins"
        }
    existing = {crd["metadata"]["name"] for crd in (await client.list(_CRDS)).items}
    if name not in existing:
        await client.create(_CRDS, _CRDS.to_manifest(document))

    async def is_available() -> bool:
        result = await client.get(_CRDS, name)
        conditions = (result.get("status") or {}).get("conditions") or ()
        return any(condition["type"] == "Established" for condition in conditions)

    await eventually(is_available)


_CRDS = CUSTOM_RESOURCE_DEFINITIONS


@pytest.fixture
async def volcano(site: OperatorNamespace) -> AsyncIterator[Manager]:
    await create_podgroup_crd(site.client, VOLCANO)
    async with site.operator_runs(gang_scheduler="volcano") as manager:
        yield manager


@pytest.fixture
async def plugins(site: OperatorNamespace) -> AsyncIterator[Manager]:
    await create_podgroup_crd(site.client, PLUGINS)
    async with site.operator_runs(gang_scheduler="scheduler-plugins-scheduler") as manager:
        yield manager


def asking(cpu: str, memory: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "pytorch", "image": "example/train:1", "resources": resources}
    return {"template": {"spec": {"containers": [container]}}}


async def group(site: OperatorNamespace, resource: Resource[Manifest]) -> Manifest:
    async def there() -> bool:
        return bool(await site.all_of(resource))

    await site.eventually(there)
    (result,) = await site.all_of(resource)
    return result


async def admit(site: OperatorNamespace) -> None:
    """Admit the gang, as Volcano does when there is room for it."""
    patch = merge_patch({"status": {"phase": "Inqueue"}})
    await site.client.patch(VOLCANO, "job", patch, namespace=site.space)


async def test_volcano_lets_a_gang_begin(site: OperatorNamespace, volcano: Manager) -> None:
    policy = {"queue": "team", "priorityClass": "high"}
    replicas = {
        "Master": {"replicas": 1, **asking("500m", "1Gi")},
        "Worker": {"replicas": 2, **asking("1", "512Mi")},
    }
    document = await site.submit(
        run={"schedulingPolicy": policy}, spec={"pytorchReplicaSpecs": replicas}
    )
    result = await group(site, VOLCANO)
    assert result["metadata"]["name"] == "job"
    assert result["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]
    assert result["spec"] == {
        "minMember": 3,
        "minResources": {"cpu": "2500m", "memory": str(2 * 1024**3)},
        "queue": "team",
        "priorityClassName": "high",
    }
    await site.pass_time(1)
    assert await site.pods() == []
    await admit(site)
    await site.wait_for_pods("job-master-0", "job-worker-0", "job-worker-1")
    pod = await site.pod("job-worker-1")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "job",
        "volcano.sh/task-spec": "worker",
    }


async def test_fields_of_other_managers_in_a_pod_group_are_kept(
    site: OperatorNamespace, volcano: Manager
) -> None:
    """For example its queue: webhooks and administrators move gangs to other queues."""
    document = await site.submit(Master=1, Worker=2)
    await group(site, VOLCANO)
    other = {
        "metadata": {"annotations": {"team": "vision"}, "labels": {"team": "vision"}},
        "spec": {"queue": "vision", "priorityClassName": "vision-high", "minTaskMember": {"a": 1}},
    }
    await site.client.patch(VOLCANO, "job", merge_patch(other), namespace=site.space)
    await admit(site)
    await site.wait_for_pods("job-master-0", "job-worker-0", "job-worker-1")
    await site.change(
        {
            "metadata": {"annotations": {"team": "speech"}},
            "spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}},
        }
    )

    async def minimum_is_right() -> bool:
        return bool((await group(site, VOLCANO))["spec"]["minMember"] == 1)

    await site.eventually(minimum_is_right)
    result = await group(site, VOLCANO)
    assert result["spec"]["queue"] == "vision"
    assert result["spec"]["priorityClassName"] == "vision-high"
    assert result["spec"]["minTaskMember"] == {"a": 1}
    assert result["metadata"]["annotations"]["team"] == "vision"
    assert result["metadata"]["labels"] == {"team": "vision"}
    assert result["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]


async def test_a_queue_is_kept_when_another_operator_takes_over(site: OperatorNamespace) -> None:
    await create_podgroup_crd(site.client, VOLCANO)
    async with site.operator_runs(gang_scheduler="volcano"):
        await site.submit(Worker=1)
        await group(site, VOLCANO)
    change = {"spec": {"queue": "vision", "minMember": 7}}
    await site.client.patch(VOLCANO, "job", merge_patch(change), namespace=site.space)
    async with site.operator_runs(gang_scheduler="volcano"):

        async def minimum_is_right() -> bool:
            return bool((await group(site, VOLCANO))["spec"]["minMember"] == 1)

        await site.eventually(minimum_is_right)
        assert (await group(site, VOLCANO))["spec"]["queue"] == "vision"


async def test_a_gang_counts_members_of_a_higher_priority_class_first(
    site: OperatorNamespace,
) -> None:
    value = PRIORITY_CLASSES.to_manifest(
        {"metadata": {"name": f"{site.space}-high"}, "value": 1000}
    )
    await site.client.create(PRIORITY_CLASSES, value)
    await create_podgroup_crd(site.client, PLUGINS)
    worker = asking("2", "2Gi")
    worker["template"]["spec"]["priorityClassName"] = f"{site.space}-high"
    replicas = {
        "Master": {"replicas": 1, **asking("1", "1Gi")},
        "Worker": {"replicas": 2, **worker},
    }
    async with site.operator_runs(gang_scheduler="scheduler-plugins-scheduler"):
        await site.submit(
            run={"schedulingPolicy": {"minAvailable": 2}}, spec={"pytorchReplicaSpecs": replicas}
        )
        result = await group(site, PLUGINS)
        assert result["spec"]["minResources"] == {"cpu": "4", "memory": str(4 * 1024**3)}
    await site.client.delete(PRIORITY_CLASSES, f"{site.space}-high")


async def test_min_resources_adds_up_the_requests_of_the_first_members(
    site: OperatorNamespace, plugins: Manager
) -> None:
    replicas = {
        "Master": {"replicas": 1, **asking("1", "1Gi")},
        "Worker": {"replicas": 3, **asking("2", "2Gi")},
    }
    policy = {"minAvailable": 2, "scheduleTimeoutSeconds": 60}
    await site.submit(run={"schedulingPolicy": policy}, spec={"pytorchReplicaSpecs": replicas})
    result = await group(site, PLUGINS)
    assert result["spec"] == {
        "minMember": 2,
        "minResources": {"cpu": "3", "memory": str(3 * 1024**3)},
        "scheduleTimeoutSeconds": 60,
    }
    await site.wait_for_pods("job-master-0", "job-worker-0", "job-worker-1", "job-worker-2")
    pod = await site.pod("job-worker-1")
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "job"


async def test_a_pod_group_is_written_only_when_it_changes(
    site: OperatorNamespace, plugins: Manager
) -> None:
    await site.submit(Worker=2)
    result = await group(site, PLUGINS)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    await site.run()
    await site.wait_for_state("Running")
    same = await group(site, PLUGINS)
    assert same["metadata"]["resourceVersion"] == result["metadata"]["resourceVersion"]
    policy = {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}}
    await site.change(policy)

    async def minimum_is_right() -> bool:
        return bool((await group(site, PLUGINS))["spec"]["minMember"] == 1)

    await site.eventually(minimum_is_right)


async def test_a_pod_group_is_deleted_when_its_job_ends(
    site: OperatorNamespace, plugins: Manager
) -> None:
    await site.submit(Worker=1)
    await group(site, PLUGINS)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.end()
    await site.wait_for_state("Succeeded")

    async def group_is_gone() -> bool:
        return not await site.all_of(PLUGINS)

    await site.eventually(group_is_gone)


async def test_the_scheduler_of_a_template_is_kept(
    site: OperatorNamespace, plugins: Manager
) -> None:
    worker = asking("1", "1Gi")
    worker["template"]["spec"]["schedulerName"] = "mine"
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 1, **worker}}})
    await site.wait_for_pods("job-worker-0")
    assert (await site.pod("job-worker-0"))["spec"]["schedulerName"] == "mine"
