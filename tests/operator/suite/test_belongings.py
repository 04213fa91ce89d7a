"""What jobs have besides pods: MPI's files and rights, gangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.manager import Manager
from danlu.kube.patches import merge_patch
from danlu.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
)
from danlu.kube.types import Document
from danlu.operator.gangs import pod_groups
from tests.kube.objects import config_map, eventually
from tests.operator.site import Site

pytestmark = pytest.mark.anyio
VOLCANO = pod_groups("volcano").decoded(Document)
PLUGINS = pod_groups("scheduler-plugins-scheduler").decoded(Document)


async def test_an_mpi_job_has_its_files_and_the_right_to_reach_its_workers(
    site: Site, operator: Manager
) -> None:
    document = await site.submit("MPIJob", spec={"slotsPerWorker": 2}, Launcher=1, Worker=2)
    await site.until_pods("job-launcher", "job-worker-0", "job-worker-1")
    assert await site.services() == []
    (files,) = [one for one in await site.all_of(CONFIG_MAPS) if "hostfile" in one["data"]]
    assert files["metadata"]["name"] == "job-config"
    assert files["data"]["hostfile"] == "job-worker-0 slots=2\njob-worker-1 slots=2\n"
    (role,) = await site.all_of(ROLES)
    assert {"pods/exec"} in [set(one["resources"]) for one in role["rules"]]
    (execute,) = [one for one in role["rules"] if one["resources"] == ["pods/exec"]]
    assert execute["resourceNames"] == ["job-worker-0", "job-worker-1"]
    (binding,) = await site.all_of(ROLE_BINDINGS)
    assert binding["subjects"][0]["name"] == "job-launcher"
    accounts = [one["metadata"]["name"] for one in await site.all_of(SERVICE_ACCOUNTS)]
    assert "job-launcher" in accounts
    assert (await site.pod("job-launcher"))["spec"]["serviceAccountName"] == "job-launcher"
    for one in (files, role, binding):
        assert one["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]


async def test_the_list_of_hosts_follows_the_workers_that_run(
    site: Site, operator: Manager
) -> None:
    await site.submit("MPIJob", Launcher=1, Worker=2)
    await site.until_pods("job-launcher", "job-worker-0", "job-worker-1")

    async def told(*names: str) -> None:
        text = "#!/bin/sh" + "".join(f"\necho {name}:1" for name in names)

        async def there() -> bool:
            found = await site.client.get(CONFIG_MAPS, "job-config", namespace=site.space)
            return bool(found["data"]["discover_hosts.sh"] == text)

        await site.eventually(there)

    await told()
    await site.run("job-worker-1")
    await told("job-worker-1")
    await site.run("job-worker-0")
    await told("job-worker-0", "job-worker-1")


async def test_a_launcher_with_an_account_of_its_own_keeps_it(
    site: Site, operator: Manager
) -> None:
    container = {"name": "mpi", "image": "example/train:1"}
    spec = {"containers": [container], "serviceAccountName": "mine"}
    launcher = {"Launcher": {"replicas": 1, "template": {"spec": spec}}}
    await site.submit("MPIJob", spec={"mpiReplicaSpecs": launcher})
    await site.until_pods("job-launcher")
    (binding,) = await site.all_of(ROLE_BINDINGS)
    assert binding["subjects"][0]["name"] == "mine"
    names = [one["metadata"]["name"] for one in await site.all_of(SERVICE_ACCOUNTS)]
    assert "job-launcher" not in names


async def test_a_config_map_of_somebody_else_is_not_touched(site: Site) -> None:
    await site.client.create(CONFIG_MAPS, config_map("job-config", site.space, mine="1"))
    async with site.operator_runs():
        await site.submit("MPIJob", Launcher=1, Worker=1)
        assert "job-config is there already" in await site.until_event("FailedCreateConfigMap")
        assert await site.pods() == []
        await site.delete("job-config", CONFIG_MAPS)
        await site.until_pods("job-launcher", "job-worker-0")


# -- gangs


async def defined(client: Client, group: Resource[Document]) -> None:
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
    document: Document = {
        "metadata": {"name": name},
        "spec": {"group": group.group, "scope": "Namespaced", "names": names},
    }
    document["spec"]["versions"] = [version]
    if group.group.endswith("k8s.io"):
        # The server wants to know who approved of the name.
        document["metadata"]["annotations"] = {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins"
        }
    there = {one["metadata"]["name"] for one in (await client.list(_CRDS)).items}
    if name not in there:
        await client.create(_CRDS, _CRDS.document(document))

    async def served() -> bool:
        found = await client.get(_CRDS, name)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Established" for one in conditions)

    await eventually(served)


_CRDS = CUSTOM_RESOURCE_DEFINITIONS


@pytest.fixture
async def volcano(site: Site) -> AsyncIterator[Manager]:
    await defined(site.client, VOLCANO)
    async with site.operator_runs(gang_scheduler="volcano") as manager:
        yield manager


@pytest.fixture
async def plugins(site: Site) -> AsyncIterator[Manager]:
    await defined(site.client, PLUGINS)
    async with site.operator_runs(gang_scheduler="scheduler-plugins-scheduler") as manager:
        yield manager


def asking(cpu: str, memory: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "pytorch", "image": "example/train:1", "resources": resources}
    return {"template": {"spec": {"containers": [container]}}}


async def group(site: Site, resource: Resource[Document]) -> Document:
    async def there() -> bool:
        return bool(await site.all_of(resource))

    await site.eventually(there)
    (found,) = await site.all_of(resource)
    return found


async def admit(site: Site) -> None:
    """What Volcano does when there is a place for the gang."""
    patch = merge_patch({"status": {"phase": "Inqueue"}})
    await site.client.patch(VOLCANO, "job", patch, namespace=site.space)


async def test_volcano_lets_a_gang_begin(site: Site, volcano: Manager) -> None:
    policy = {"queue": "team", "priorityClass": "high"}
    replicas = {
        "Master": {"replicas": 1, **asking("500m", "1Gi")},
        "Worker": {"replicas": 2, **asking("1", "512Mi")},
    }
    document = await site.submit(
        run={"schedulingPolicy": policy}, spec={"pytorchReplicaSpecs": replicas}
    )
    found = await group(site, VOLCANO)
    assert found["metadata"]["name"] == "job"
    assert found["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]
    assert found["spec"] == {
        "minMember": 3,
        "minResources": {"cpu": "2500m", "memory": str(2 * 1024**3)},
        "queue": "team",
        "priorityClassName": "high",
    }
    await site.pass_time(1)
    assert await site.pods() == []
    await admit(site)
    await site.until_pods("job-master-0", "job-worker-0", "job-worker-1")
    pod = await site.pod("job-worker-1")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "job",
        "volcano.sh/task-spec": "worker",
    }


async def test_a_gang_counts_what_its_first_members_ask_for(site: Site, plugins: Manager) -> None:
    replicas = {
        "Master": {"replicas": 1, **asking("1", "1Gi")},
        "Worker": {"replicas": 3, **asking("2", "2Gi")},
    }
    policy = {"minAvailable": 2, "scheduleTimeoutSeconds": 60}
    await site.submit(run={"schedulingPolicy": policy}, spec={"pytorchReplicaSpecs": replicas})
    found = await group(site, PLUGINS)
    assert found["spec"] == {
        "minMember": 2,
        "minResources": {"cpu": "3", "memory": str(3 * 1024**3)},
        "scheduleTimeoutSeconds": 60,
    }
    await site.until_pods("job-master-0", "job-worker-0", "job-worker-1", "job-worker-2")
    pod = await site.pod("job-worker-1")
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "job"


async def test_a_pod_group_is_written_only_when_it_changes(site: Site, plugins: Manager) -> None:
    await site.submit(Worker=2)
    found = await group(site, PLUGINS)
    await site.until_pods("job-worker-0", "job-worker-1")
    await site.run()
    await site.until("Running")
    same = await group(site, PLUGINS)
    assert same["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    policy = {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}}
    await site.change(policy)

    async def changed() -> bool:
        return bool((await group(site, PLUGINS))["spec"]["minMember"] == 1)

    await site.eventually(changed)


async def test_a_pod_group_goes_with_the_end_of_its_job(site: Site, plugins: Manager) -> None:
    await site.submit(Worker=1)
    await group(site, PLUGINS)
    await site.until_pods("job-worker-0")
    await site.run()
    await site.end()
    await site.until("Succeeded")

    async def gone() -> bool:
        return not await site.all_of(PLUGINS)

    await site.eventually(gone)


async def test_a_scheduler_that_a_template_names_stays(site: Site, plugins: Manager) -> None:
    worker = asking("1", "1Gi")
    worker["template"]["spec"]["schedulerName"] = "mine"
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 1, **worker}}})
    await site.until_pods("job-worker-0")
    assert (await site.pod("job-worker-0"))["spec"]["schedulerName"] == "mine"
