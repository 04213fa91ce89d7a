"""MPIJobs v2beta1: keys, names and files of launchers that reach their workers with ssh."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP521R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from danlu.errors import OutsideError
from danlu.kube.client import Client
from danlu.kube.manager import Manager
from danlu.kube.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from danlu.kube.types import Manifest
from danlu.operator.crds import custom_resource_definition
from danlu.operator.setup import run_operator
from danlu.operator.stored_versions import check_stored_versions
from danlu.training.registry import find_framework, list_kinds
from tests.kube.servers import ApiServer, real_server
from tests.operator.operator_namespace import OperatorNamespace, settings
from tests.operator.suite.test_dependents import PLUGINS, create_podgroup_crd

pytestmark = pytest.mark.anyio
KIND = "MPIJob"
PODS = ("job-launcher", "job-worker-0", "job-worker-1")
V1, V2BETA1 = (list_kinds((KIND,), {KIND: version}) for version in ("v1", "v2beta1"))


@pytest.fixture(scope="module")
def versions() -> Mapping[str, str]:
    return {KIND: "v2beta1"}


@pytest.fixture(scope="module")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server of this module: a kind has one version on each."""
    with real_server(tmp_path_factory.mktemp("mpi")) as server:
        yield server


async def submit(site: OperatorNamespace, **spec: Any) -> Manifest:
    run = spec.pop("run", None)
    return await site.submit(KIND, run=run, spec=spec, Launcher=1, Worker=2)


async def start_job(site: OperatorNamespace, **run: Any) -> None:
    """Submit a job with this ``runPolicy``, and wait until it runs."""
    await submit(site, run=run)
    await site.wait_for_pods(*PODS)
    await site.run()
    await site.wait_for_state("Running", KIND)


async def secret_of(site: OperatorNamespace) -> Manifest:
    return await site.client.get(SECRETS, "job-ssh", namespace=site.space)


async def test_a_job_has_keys_names_and_hosts(site: OperatorNamespace, operator: Manager) -> None:
    document = await submit(site, slotsPerWorker=2)
    await site.wait_for_pods(*PODS)
    assert document["spec"]["sshAuthMountPath"] == "/root/.ssh"  # the CRD's default
    secret = await secret_of(site)
    assert secret["type"] == "kubernetes.io/ssh-auth"
    data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    key = load_pem_private_key(data["ssh-privatekey"], None)
    assert isinstance(key, EllipticCurvePrivateKey)
    assert isinstance(key.curve, SECP521R1)
    assert data["ssh-privatekey"].startswith(b"-----BEGIN EC PRIVATE KEY-----")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert data["ssh-publickey"] == public
    hosts = await site.client.get(CONFIG_MAPS, "job-config", namespace=site.space)
    assert hosts["data"]["hostfile"] == (
        f"job-worker-0.job.{site.space}.svc slots=2\njob-worker-1.job.{site.space}.svc slots=2\n"
    )
    assert "kubexec.sh" not in hosts["data"]
    assert await site.services() == ["job"]
    launcher = await site.pod("job-launcher")
    owners = [obj["metadata"]["ownerReferences"][0] for obj in (launcher, secret, hosts)]
    assert {(owner["uid"], owner["apiVersion"]) for owner in owners} == {
        (document["metadata"]["uid"], "kubeflow.org/v2beta1")
    }


async def test_keys_stay_the_same_while_the_job_lives(
    site: OperatorNamespace, operator: Manager
) -> None:
    await submit(site)
    await site.wait_for_pods(*PODS)
    keys = (await secret_of(site))["data"]
    await site.run()
    uid = await site.uid("job-launcher")
    await site.end("job-launcher", code=1)
    await site.wait_for_recreation("job-launcher", uid)
    assert (await secret_of(site))["data"] == keys


async def test_a_secret_that_is_not_the_jobs_is_not_used(site: OperatorNamespace) -> None:
    metadata = {"name": "job-ssh", "namespace": site.space}
    await site.client.create(SECRETS, SECRETS.to_manifest({"metadata": metadata, "data": {}}))
    async with site.operator_runs():
        await submit(site)
        assert "job-ssh already exists" in await site.wait_for_event("FailedCreateSecret")
        assert await site.pods() == []
        await site.delete("job-ssh", SECRETS)
        await site.wait_for_pods(*PODS)


async def test_a_job_whose_launcher_succeeds_succeeds(
    site: OperatorNamespace, operator: Manager
) -> None:
    await start_job(site, cleanPodPolicy="Running")
    await site.end("job-launcher")
    status = await site.wait_for_state("Succeeded", KIND)
    assert status["completionTime"]
    assert status["replicaStatuses"]["Launcher"]["succeeded"] == 1
    await site.wait_for_pods("job-launcher")


# -- failures -------------------------------------------------------------------------------------


async def fail_launcher(site: OperatorNamespace) -> None:
    """Let the launcher fail, and wait until a new pod has its name."""
    uid = await site.uid("job-launcher")
    await site.end("job-launcher", code=1)
    await site.wait_for_recreation("job-launcher", uid)


async def test_the_last_pod_of_a_launcher_is_kept_with_its_log(site: OperatorNamespace) -> None:
    async with site.operator_runs(pace={"first_delay": 0.1}):
        await submit(site, run={"backoffLimit": 1})
        await site.wait_for_pods(*PODS)
        await site.run()
        assert (await site.pod("job-launcher"))["spec"]["restartPolicy"] == "Never"
        await fail_launcher(site)
        assert await site.state(KIND) != "Failed"
        await site.run("job-launcher")

        async def is_counted() -> bool:
            counts = (await site.status(KIND))["replicaStatuses"]["Launcher"]
            return bool(counts == {"active": 1, "failed": 1})

        await site.eventually(is_counted)
        await site.end("job-launcher", code=1)
        status = await site.wait_for_state("Failed", KIND)
        assert status["conditions"][-1]["reason"] == "BackoffLimitExceeded"
        assert status["completionTime"]
        assert status["replicaStatuses"]["Launcher"] == {"failed": 2}
        assert await site.pods() == sorted(PODS)  # cleanPodPolicy: None
        assert (await site.pod("job-launcher"))["status"]["phase"] == "Failed"


async def test_a_launcher_that_failed_waits_for_its_workers(site: OperatorNamespace) -> None:
    async with site.operator_runs(pace={"first_delay": 0.1}):
        await submit(site)
        await site.wait_for_pods(*PODS)
        # The workers' image is still being pulled.
        await site.run("job-launcher", "job-worker-0")
        await site.end("job-launcher", code=1)
        await site.wait_for_pods("job-worker-0", "job-worker-1")
        await site.pass_time(2)
        assert await site.pods() == ["job-worker-0", "job-worker-1"]
        await site.run("job-worker-1")
        await site.wait_for_pods(*PODS)


async def test_a_worker_that_failed_is_tolerated_unless_it_was_evicted(
    site: OperatorNamespace, operator: Manager
) -> None:
    await start_job(site, cleanPodPolicy="Running")
    await site.end("job-worker-0", code=1)

    async def is_counted() -> bool:
        counts = (await site.status(KIND))["replicaStatuses"]["Worker"]
        return bool(counts.get("failed") == 1)

    await site.eventually(is_counted)
    assert await site.state(KIND) == "Running"
    await site.evict("job-worker-1")
    status = await site.wait_for_state("Failed", KIND)
    condition = status["conditions"][-1]
    assert (condition["reason"], condition["message"]) == (
        "MPIJobEvicted",
        "1/2 workers are evicted",
    )
    assert status["completionTime"]
    await site.wait_for_pods("job-worker-0", "job-worker-1")  # both have ended


async def test_no_launcher_outlives_its_job_under_any_policy(
    site: OperatorNamespace, operator: Manager
) -> None:
    await start_job(site, cleanPodPolicy="None")
    await site.evict("job-worker-1")
    await site.wait_for_state("Failed", KIND)
    await site.wait_for_pods("job-worker-0", "job-worker-1")


async def test_a_job_is_deleted_after_its_time_to_live(
    site: OperatorNamespace, operator: Manager
) -> None:
    await submit(site, run={"ttlSecondsAfterFinished": 1})
    await site.wait_for_pods(*PODS)
    await site.run()
    await site.end("job-launcher")

    async def is_gone() -> bool:
        return await site.is_gone(KIND)

    await site.eventually(is_gone)


async def test_an_invalid_job_fails_with_what_is_wrong(
    site: OperatorNamespace, operator: Manager
) -> None:
    template = {"spec": {"containers": [{"name": "a", "image": "example/pi:1"}]}}
    specs = {"Launcher": {"template": template}, "Worker": {"template": template}}
    await submit(site, mpiReplicaSpecs=specs)
    status = await site.wait_for_state("Failed", KIND)
    condition = status["conditions"][-1]
    assert condition["reason"] == "MPIJobFailedValidation"
    assert "spec.mpiReplicaSpecs[Worker].replicas: must be at least 1" in condition["message"]


# -- changes --------------------------------------------------------------------------------------


async def test_a_resumed_launcher_waits_for_its_workers_again(
    site: OperatorNamespace, operator: Manager
) -> None:
    await submit(site, launcherCreationPolicy="WaitForWorkersReady")
    workers = ("job-worker-0", "job-worker-1")
    await site.wait_for_pods(*workers)
    await site.run()
    await site.wait_for_pods(*PODS)
    await site.run()
    started = (await site.wait_for_state("Running", KIND))["startTime"]
    await site.pass_time(1)
    await site.change({"spec": {"runPolicy": {"suspend": True}}}, KIND)
    status = await site.wait_for_state("Suspended", KIND)
    await site.wait_for_pods()
    conditions = {each["type"]: each for each in status["conditions"]}
    assert conditions["Running"]["status"] == "False"
    assert conditions["Suspended"]["reason"] == "MPIJobSuspended"

    await site.change({"spec": {"runPolicy": {"suspend": False}}}, KIND)
    await site.wait_for_pods(*workers)
    await site.run("job-worker-0")
    await site.pass_time(1)
    assert await site.pods() == sorted(workers)
    await site.run("job-worker-1")
    await site.wait_for_pods(*PODS)
    status = await site.status(KIND)
    conditions = {each["type"]: each for each in status["conditions"]}
    assert (conditions["Suspended"]["status"], conditions["Suspended"]["reason"]) == (
        "False",
        "MPIJobResumed",
    )
    assert status["startTime"] > started


async def test_the_hosts_follow_the_number_of_workers(
    site: OperatorNamespace, operator: Manager
) -> None:
    document = await submit(site)
    await site.wait_for_pods(*PODS)
    await site.run()
    specs = document["spec"]["mpiReplicaSpecs"]
    for number in (3, 1):
        specs["Worker"]["replicas"] = number
        await site.change({"spec": {"mpiReplicaSpecs": specs}}, KIND)
        workers = [f"job-worker-{index}" for index in range(number)]
        await site.wait_for_pods("job-launcher", *workers)
        await site.run(*workers)
        names = [f"{worker}.job.{site.space}.svc" for worker in workers]
        expected = {
            "hostfile": "".join(f"{name} slots=1\n" for name in names),
            "discover_hosts.sh": "#!/bin/sh\n" + "".join(f"echo {name}\n" for name in names),
        }

        async def files_are_right(expected: Mapping[str, str] = expected) -> bool:
            found = await site.client.get(CONFIG_MAPS, "job-config", namespace=site.space)
            return bool(found["data"] == expected)

        await site.eventually(files_are_right)


async def test_a_job_of_multikueue_is_left_alone(
    site: OperatorNamespace, operator: Manager
) -> None:
    await submit(site, run={"managedBy": "kueue.x-k8s.io/multikueue"})
    run = {"managedBy": "kubeflow.org/mpi-operator"}
    await site.submit(KIND, "ours", run=run, Launcher=1, Worker=1)
    await site.wait_for_pods("ours-launcher", "ours-worker-0")
    assert await site.status(KIND) == {}


@pytest.mark.parametrize(
    ("policy", "members"), [("AtStartup", 3), ("WaitForWorkersReady", 2)], ids=str
)
async def test_a_gang_has_the_pods_that_start_together(
    site: OperatorNamespace, policy: str, members: int
) -> None:
    await create_podgroup_crd(site.client, PLUGINS)
    async with site.operator_runs(gang_scheduler="scheduler-plugins-scheduler"):
        await submit(site, launcherCreationPolicy=policy)
        await site.wait_for_pods(*PODS[3 - members :])
        (group,) = await site.all_of(PLUGINS)
        assert group["spec"]["minMember"] == members
        await site.run()
        await site.wait_for_pods(*PODS)
        in_gang = [
            (await site.pod(name))["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group")
            for name in PODS
        ]
        assert in_gang == ["job" if members == 3 else None, "job", "job"]


# -- one version per cluster ----------------------------------------------------------------------


def define(*versions: str, unserved: str = "") -> Manifest:
    """Return the CRD with several versions, of which the first is stored."""
    definition = custom_resource_definition(find_framework(KIND))
    (version,) = definition["spec"]["versions"]
    definition["spec"]["versions"] = [
        {**version, "name": name, "storage": index == 0, "served": name != unserved}
        for index, name in enumerate(versions)
    ]
    return definition


async def define_in(client: Client, definition: Manifest) -> None:
    name = definition["metadata"]["name"]
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)
    created = await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    stored = [each["name"] for each in definition["spec"]["versions"] if each["storage"]]
    status = {**created, "status": {**(created.get("status") or {}), "storedVersions": stored}}
    await client.update(CUSTOM_RESOURCE_DEFINITIONS, status, subresource="status")


async def test_a_cluster_with_jobs_of_another_version_is_refused(
    fake_site: OperatorNamespace,
) -> None:
    client = fake_site.client
    await check_stored_versions(client, V1)
    for definition in (
        define("v2beta1"),
        define("v2beta1", "v1"),
        define("v2beta1", "v1", unserved="v2beta1"),
    ):
        await define_in(client, definition)
        with pytest.raises(OutsideError, match="MPIJobs of v2beta1, not v1 alone") as caught:
            await check_stored_versions(client, V1)
        assert "--mpijob-version=v2beta1" in caught.value.hint
    await define_in(client, define("v2beta1", "v1", unserved="v1"))
    await check_stored_versions(client, V2BETA1)
    await check_stored_versions(client, list_kinds(("PyTorchJob",)))


async def test_an_operator_of_another_version_does_not_start(
    fake_site: OperatorNamespace,
) -> None:
    wanted = settings(fake_site.space, versions={KIND: "v2beta1"})
    with pytest.raises(OutsideError, match="MPIJobs of v1, not v2beta1 alone"):
        await run_operator(fake_site.access, wanted)


async def test_without_a_definition_there_is_nothing_to_refuse(
    fake_site: OperatorNamespace,
) -> None:
    await fake_site.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "mpijobs.kubeflow.org")
    await check_stored_versions(fake_site.client, V2BETA1)
