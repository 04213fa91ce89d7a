"""TrainJobs: pods and statuses as Kubeflow Trainer's clients expect them, next to v1's kinds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from danlu.kube.errors import Invalid
from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS, SERVICES
from danlu.kube.types import Manifest
from danlu.operator.types import runtime_resource
from danlu.training.train_job.runtimes import installed_runtime
from danlu.util.yaml_with_lines import read_yaml
from tests.operator.operator_namespace import OperatorNamespace, jobs

pytestmark = pytest.mark.anyio
KIND = "TrainJob"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
RUNTIME = f"""
mlPolicy: {{numNodes: 2, torch: {{}}}}
template:
  spec:
    replicatedJobs:
    - name: node
      template:
        metadata: {{labels: {{{STEP}: trainer}}}}
        spec:
          template:
            metadata: {{labels: {{team: vision}}}}
            spec:
              containers:
              - {{name: node, image: "example/train:1", command: [torchrun, train.py]}}
"""
#: The dataset first, then all nodes again if one fails.
STAGED = f"""
mlPolicy: {{numNodes: 2, torch: {{}}}}
template:
  spec:
    failurePolicy: {{maxRestarts: 1}}
    replicatedJobs:
    - name: dataset-initializer
      template:
        metadata: {{labels: {{{STEP}: dataset-initializer}}}}
        spec:
          backoffLimit: 0
          template:
            spec:
              containers:
              - {{name: dataset-initializer, image: "example/data:1"}}
    - name: node
      dependsOn: [{{name: dataset-initializer, status: Complete}}]
      template:
        metadata: {{labels: {{{STEP}: trainer}}}}
        spec:
          backoffLimit: 0
          template:
            spec:
              containers:
              - {{name: node, image: "example/train:1"}}
"""


def read_spec(text: str) -> dict[str, Any]:
    ((value, _),) = read_yaml(textwrap.dedent(text), "runtime.yaml")
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain


async def create_runtime(site: OperatorNamespace, spec: str | Mapping[str, Any] = RUNTIME) -> None:
    resource = runtime_resource("TrainingRuntime")
    metadata = {"name": "team", "namespace": site.space}
    manifest = {"metadata": metadata, "spec": read_spec(spec) if isinstance(spec, str) else spec}
    await site.client.create(resource, resource.to_manifest(manifest))


async def submit(site: OperatorNamespace, **spec: Any) -> Manifest:
    reference = {"runtimeRef": {"kind": "TrainingRuntime", "name": "team"}}
    metadata = {"name": "job", "namespace": site.space}
    manifest = {"metadata": metadata, "spec": {**reference, "trainer": {}, **spec}}
    return await site.client.create(jobs(KIND), jobs(KIND).to_manifest(manifest))


async def wait_for_hosts(site: OperatorNamespace, *hosts: str) -> list[Manifest]:
    """Wait until these are the host names of the pods; return the pods in this order."""

    async def are_there() -> bool:
        pods = await site.all_of(PODS)
        return sorted(pod["spec"].get("hostname", "") for pod in pods) == sorted(hosts)

    await site.eventually(are_there)
    found = {pod["spec"].get("hostname", ""): pod for pod in await site.all_of(PODS)}
    return [found[host] for host in hosts]


def names_of(pods: list[Manifest]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


async def wait_for_condition(site: OperatorNamespace, type: str, reason: str) -> Manifest:
    async def is_there() -> bool:
        return type in conditions(await site.status(KIND))

    await site.eventually(is_there)
    condition = conditions(await site.status(KIND))[type]
    assert (condition["status"], condition["reason"]) == ("True", reason), condition
    return condition


def conditions(status: Mapping[str, Any]) -> dict[str, Manifest]:
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


async def counts(site: OperatorNamespace, name: str = "node") -> set[str]:
    """Return which of a replicated job's counts are 1."""
    found = (await site.status(KIND)).get("jobsStatus") or ()
    return {
        field
        for job in found
        if job["name"] == name
        for field, value in job.items()
        if field != "name" and value == 1
    }


async def wait_for_counts(site: OperatorNamespace, *expected: str, name: str = "node") -> None:
    async def are_there() -> bool:
        return await counts(site, name) == set(expected)

    await site.eventually(are_there)


async def test_pods_are_named_labelled_and_found_as_those_of_a_job_set(
    site: OperatorNamespace, operator: Manager
) -> None:
    await create_runtime(site)
    created = await submit(site, trainer={"numProcPerNode": 4, "image": "example/train:2"})
    pods = await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    for index, pod in enumerate(pods):
        metadata, spec = pod["metadata"], pod["spec"]
        start, _, end = metadata["name"].rpartition("-")
        assert (start, len(end)) == (f"job-node-0-{index}", 5)
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "job",
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "batch.kubernetes.io/job-completion-index": str(index),
            "team": "vision",
        }
        assert labels.items() <= metadata["labels"].items()
        assert metadata["annotations"]["batch.kubernetes.io/job-completion-index"] == str(index)
        (owner,) = metadata["ownerReferences"]
        assert owner["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
        assert owner["uid"] == created["metadata"]["uid"]
        assert (spec["subdomain"], spec["restartPolicy"]) == ("job", "OnFailure")
        (container,) = spec["containers"]
        assert (container["name"], container["image"]) == ("node", "example/train:2")
        env = {variable["name"]: variable["value"] for variable in container["env"]}
        assert env == {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "4",
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": "job-node-0-0.job",
            "PET_MASTER_PORT": "29500",
            "JOB_COMPLETION_INDEX": str(index),
        }
    (service,) = await site.all_of(SERVICES)
    assert service["metadata"]["name"] == "job"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"jobset.sigs.k8s.io/jobset-name": "job"}
    assert service["spec"]["publishNotReadyAddresses"] is True


async def test_the_status_has_no_condition_before_the_end(
    site: OperatorNamespace, operator: Manager
) -> None:
    await create_runtime(site)
    await submit(site)
    names = names_of(await wait_for_hosts(site, "job-node-0-0", "job-node-0-1"))
    await wait_for_counts(site, "active")
    await site.run(*names)
    await wait_for_counts(site, "active", "ready")
    assert conditions(await site.status(KIND)) == {}
    await site.end(*names)
    await wait_for_condition(site, "Complete", "AllJobsCompleted")
    await wait_for_counts(site, "succeeded")
    assert list(conditions(await site.status(KIND))) == ["Complete"]
    assert await site.pods() == sorted(names)


async def test_both_generations_run_in_one_process(
    site: OperatorNamespace, operator: Manager
) -> None:
    await create_runtime(site)
    await submit(site, trainer={"numNodes": 1})
    await site.submit("PyTorchJob", Worker=1)
    (node, worker) = await wait_for_hosts(site, "job-node-0-0", "")
    assert worker["metadata"]["name"] == "job-worker-0"
    await site.end(node["metadata"]["name"])
    await wait_for_condition(site, "Complete", "AllJobsCompleted")
    await site.end("job-worker-0")
    await site.wait_for_state("Succeeded")


async def test_nodes_wait_for_the_dataset_and_all_are_recreated_together(
    site: OperatorNamespace, operator: Manager
) -> None:
    await create_runtime(site, STAGED)
    await submit(site)
    (data,) = await wait_for_hosts(site, "job-dataset-initializer-0-0")
    await site.end(data["metadata"]["name"])
    hosts = ("job-dataset-initializer-0-0", "job-node-0-0", "job-node-0-1")
    _, *nodes = await wait_for_hosts(site, *hosts)
    first = names_of(nodes)
    await site.run(*first)
    await site.end(first[1], code=3)

    async def only_data_again() -> bool:
        pods = await site.all_of(PODS)
        return [pod["spec"]["hostname"] for pod in pods] == [hosts[0]] and names_of(pods) != [
            data["metadata"]["name"]
        ]

    await site.eventually(only_data_again)
    await site.end(*await site.pods())
    _, *nodes = await wait_for_hosts(site, *hosts)
    second = names_of(nodes)
    assert not {*first} & {*second}
    assert all(
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1" for pod in nodes
    )
    await site.run(*second)
    await site.end(second[0], code=3)
    await wait_for_condition(site, "Failed", "ReachedMaxRestarts")


async def test_claims_and_the_service_are_those_that_the_runtime_describes(
    site: OperatorNamespace, operator: Manager
) -> None:
    more = """
    network: {subdomain: mesh}
    volumeClaimPolicies:
    - templates:
      - metadata: {name: data}
        spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
    - retentionPolicy: {whenDeleted: Retain}
      templates:
      - metadata: {name: kept}
        spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 2Gi}}}
"""
    mounts = "[{name: data, mountPath: /data}, {name: kept, mountPath: /kept}]"
    mount = f"volumeMounts: {mounts}, command:"
    kept = {
        "metadata": {"name": "kept-job", "namespace": site.space},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}},
    }
    claims = PERSISTENT_VOLUME_CLAIMS
    await site.client.create(claims, claims.to_manifest(kept))
    await create_runtime(site, RUNTIME.replace("command:", mount) + more)
    await submit(site)
    pod, _ = await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert env["PET_MASTER_ADDR"] == "job-node-0-0.mesh"
    assert pod["spec"]["subdomain"] == "mesh"
    assert await site.services() == ["mesh"]
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "data"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-job"}
    found = {claim["metadata"]["name"]: claim for claim in await site.all_of(claims)}
    assert found.keys() == {"data-job", "kept-job"}
    assert found["data-job"]["metadata"]["ownerReferences"][0]["kind"] == KIND
    assert found["data-job"]["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    assert "ownerReferences" not in found["kept-job"]["metadata"], "one of an earlier job"
    assert found["kept-job"]["spec"]["resources"] == {"requests": {"storage": "5Gi"}}


async def test_a_job_is_suspended_and_resumed(site: OperatorNamespace, operator: Manager) -> None:
    await create_runtime(site)
    await submit(site, suspend=True)
    await wait_for_condition(site, "Suspended", "Suspended")
    await wait_for_counts(site, "suspended")
    assert await site.pods() == []
    # As Kueue does.
    patch = {
        "manager": "kueue.x-k8s.io/manager",
        "trainingRuntimeSpec": {
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "spec": {"template": {"spec": {"nodeSelector": {"gpu": "h200"}}}}
                            },
                        }
                    ]
                }
            }
        },
    }
    await site.change({"spec": {"suspend": False, "runtimePatches": [patch]}}, KIND)
    pods = await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"gpu": "h200"}] * 2
    resumed = conditions(await site.status(KIND))["Suspended"]
    assert (resumed["status"], resumed["reason"]) == ("False", "Resumed")
    await site.change({"spec": {"suspend": True}}, KIND)
    await wait_for_hosts(site)
    await wait_for_condition(site, "Suspended", "Suspended")


async def test_the_deadline_ends_a_job(site: OperatorNamespace, operator: Manager) -> None:
    await create_runtime(site)
    await submit(site, activeDeadlineSeconds=2)
    await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    await site.run()
    await site.pass_time(3)
    await wait_for_condition(site, "Failed", "DeadlineExceeded")
    await wait_for_hosts(site)


async def test_a_runtime_that_is_edited_does_not_touch_a_running_job(
    site: OperatorNamespace,
) -> None:
    await create_runtime(site)
    async with site.operator_runs():
        await submit(site, suspend=True)
        await wait_for_condition(site, "Suspended", "Suspended")
    change = merge_patch({"spec": {"mlPolicy": {"numNodes": 5}}})
    runtimes = runtime_resource("TrainingRuntime")
    await site.client.patch(runtimes, "team", change, namespace=site.space)
    async with site.operator_runs():
        await site.change({"spec": {"suspend": False}}, KIND)
        await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    assert "job-runtime-snapshot" in await site.names(CONFIG_MAPS)


async def test_a_job_that_kubeflow_trainer_has_ended_stays_ended(site: OperatorNamespace) -> None:
    await create_runtime(site)
    await submit(site)
    condition = {
        "type": "Complete",
        "status": "True",
        "reason": "AllJobsCompleted",
        "message": "jobset completed successfully",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    change = merge_patch({"status": {"conditions": [condition]}})
    await site.client.patch(jobs(KIND), "job", change, namespace=site.space, subresource="status")
    async with site.operator_runs():
        await site.submit("PyTorchJob", "other", Worker=1)
        await site.wait_for_pods("other-worker-0")
        await site.pass_time(1)
        assert await site.pods() == ["other-worker-0"]
    assert (await site.status(KIND))["conditions"] == [condition]


async def test_only_the_pods_of_a_job_expire(site: OperatorNamespace, operator: Manager) -> None:
    await create_runtime(site, RUNTIME + "    ttlSecondsAfterFinished: 2\n")
    await submit(site, trainer={"numNodes": 1})
    await wait_for_hosts(site, "job-node-0-0")
    await site.end()
    await wait_for_condition(site, "Complete", "AllJobsCompleted")
    await site.pass_time(3)
    await wait_for_hosts(site)
    assert "Complete" in conditions(await site.status(KIND))


async def test_a_job_of_another_manager_is_ignored(
    site: OperatorNamespace, operator: Manager
) -> None:
    await submit(site, managedBy="kueue.x-k8s.io/multikueue")
    await site.submit("PyTorchJob", "ours", Worker=1)
    await site.wait_for_pods("ours-worker-0")
    assert await site.status(KIND) == {}
    assert await site.messages("TrainJobResourcesCreationFailed") == []


async def test_a_job_waits_for_its_runtime(site: OperatorNamespace, operator: Manager) -> None:
    await submit(site)
    message = await site.wait_for_event("TrainJobResourcesCreationFailed")
    assert message == "TrainingRuntime team not found"
    assert conditions(await site.status(KIND)) == {}
    await create_runtime(site)
    await site.pass_time(12)
    await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("OtherRuntime", None, "unsupported runtime: OtherRuntime"),
        (
            "TrainingRuntime",
            read_spec(RUNTIME.replace("torch", "flux")),
            "spec.mlPolicy.flux: is not supported",
        ),
    ],
    ids=["kind", "flux"],
)
async def test_a_runtime_that_the_operator_does_not_run_fails_the_job(
    site: OperatorNamespace,
    operator: Manager,
    kind: str,
    spec: Mapping[str, Any] | None,
    words: str,
) -> None:
    if spec is not None:
        await create_runtime(site, spec)
    await submit(site, runtimeRef={"kind": kind, "name": "team"})
    condition = await wait_for_condition(site, "Failed", "TrainingRuntimeNotSupported")
    assert words in condition["message"]
    assert await site.pods() == []


async def test_a_launcher_reaches_its_nodes_with_ssh(
    site: OperatorNamespace, operator: Manager
) -> None:
    runtime = installed_runtime("deepspeed-distributed")
    assert runtime is not None
    await create_runtime(site, runtime["spec"])
    document = await submit(site, trainer={"numNodes": 3, "numProcPerNode": 2})
    (first, _) = await wait_for_hosts(site, "job-node-0-0", "job-node-0-1")
    secret = await site.client.get(SECRETS, "job-mpi-ssh-auth", namespace=site.space)
    assert (secret["type"], secret["immutable"]) == ("kubernetes.io/ssh-auth", True)
    assert sorted(secret["data"]) == ["ssh-privatekey", "ssh-publickey"]
    hosts = await site.client.get(CONFIG_MAPS, "job-mpi-hostfile", namespace=site.space)
    assert hosts["data"] == {
        "hostfile": "job-launcher-0-0.job slots=2\njob-node-0-0.job slots=2\n"
        "job-node-0-1.job slots=2\n"
    }
    (node,) = first["spec"]["containers"]
    assert (node["command"], node["args"][0]) == (["/usr/sbin/sshd"], "-De")
    keys = {"name": "mpi-ssh-auth", "mountPath": "/home/mpiuser/.ssh"}
    assert keys in node["volumeMounts"]

    # The launcher waits for the nodes.
    await site.run(*await site.pods())
    hosts_of_all = ("job-launcher-0-0", "job-node-0-0", "job-node-0-1")
    (launcher, *_) = await wait_for_hosts(site, *hosts_of_all)
    (main,) = launcher["spec"]["containers"]
    assert keys in main["volumeMounts"]
    assert {"name": "mpi-hostfile", "mountPath": "/etc/mpi"} in main["volumeMounts"]
    variables = {each["name"]: each["value"] for each in main["env"] if "MCA" in each["name"]}
    assert variables == {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        "PRTE_MCA_prte_set_default_slots": "2",
    }
    sources = {volume["name"]: volume for volume in launcher["spec"]["volumes"]}
    assert sources["mpi-ssh-auth"]["secret"] == {
        "secretName": "job-mpi-ssh-auth",
        "defaultMode": 0o400,
        "items": [
            {"key": "ssh-privatekey", "path": "id_rsa", "mode": 0o640},
            {"key": "ssh-publickey", "path": "id_rsa.pub", "mode": 0o644},
            {"key": "ssh-publickey", "path": "authorized_keys", "mode": 0o644},
        ],
    }
    assert sources["mpi-hostfile"]["configMap"]["items"] == [
        {"key": "hostfile", "path": "hostfile", "mode": 0o444}
    ]
    owner = secret["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == (KIND, document["metadata"]["uid"])

    # It decides the job, whose nodes would serve forever.
    await site.run(*names_of([launcher]))
    await site.end(*names_of([launcher]))
    await wait_for_condition(site, "Complete", "AllJobsCompleted")
    await wait_for_hosts(site, "job-launcher-0-0")


async def test_what_runs_cannot_be_changed(site: OperatorNamespace, operator: Manager) -> None:
    if site.fake is not None:
        pytest.skip("the fake API server does not evaluate CEL rules")
    await create_runtime(site)
    await submit(site, trainer={"env": [{"name": "SEED", "value": "1"}]})
    other = {"env": [{"name": "SEED", "value": "2"}]}
    source = {"env": [{"name": "SEED", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}
    manager = {"managedBy": "kueue.x-k8s.io/multikueue"}
    reference = {"runtimeRef": {"name": "other"}}
    for change in ({"trainer": other}, {"trainer": source}, reference, manager):
        with pytest.raises(Invalid, match="field is immutable"):
            await site.change({"spec": change}, KIND)
