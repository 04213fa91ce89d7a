"""SDK calls of the training operator's end-to-end tests (sdk/python/test/e2e, 1.9).

The same calls and claims for every kind, without its gang schedulers; run by the SDK's environment.
"""

# What it imports is not in danlu's environment.
# mypy: ignore-errors

import json
import sys

from kubeflow import training
from kubeflow.training import KubeflowOrgV1ReplicaSpec, KubeflowOrgV1RunPolicy, TrainingClient
from kubernetes.client import (
    V1Container,
    V1ObjectMeta,
    V1PodSpec,
    V1PodTemplateSpec,
    V1ResourceRequirements,
)

SPACE = sys.argv[2]
#: Kind, field of the replicas, container, replicas by type, restart policy.
KINDS = [
    ("PyTorchJob", "pytorch_replica_specs", "pytorch", {"Master": 1, "Worker": 1}, "OnFailure"),
    ("TFJob", "tf_replica_specs", "tensorflow", {"Worker": 1}, "Never"),
    ("XGBoostJob", "xgb_replica_specs", "xgboost", {"Master": 1, "Worker": 1}, "Never"),
    ("MPIJob", "mpi_replica_specs", "mpi", {"Launcher": 1, "Worker": 1}, "Never"),
    ("PaddleJob", "paddle_replica_specs", "paddle", {"Worker": 2}, "OnFailure"),
    ("JAXJob", "jax_replica_specs", "jax", {"Worker": 2}, "Never"),
]


def job(kind, field, container, replicas, restart, *, name, managed_by=None):
    box = V1Container(
        name=container,
        image="example/train:1",
        command=["train"],
        resources=V1ResourceRequirements(limits={"memory": "1Gi", "cpu": "0.4"}),
    )
    template = V1PodTemplateSpec(
        metadata=V1ObjectMeta(annotations={"sidecar.istio.io/inject": "false"}),
        spec=V1PodSpec(containers=[box]),
    )
    specs = {
        type: KubeflowOrgV1ReplicaSpec(replicas=number, restart_policy=restart, template=template)
        for type, number in replicas.items()
    }
    policy = KubeflowOrgV1RunPolicy(clean_pod_policy="None", managed_by=managed_by)
    spec = getattr(training, f"KubeflowOrgV1{kind}Spec")(run_policy=policy, **{field: specs})
    return getattr(training, f"KubeflowOrgV1{kind}")(
        api_version="kubeflow.org/v1",
        kind=kind,
        metadata=V1ObjectMeta(name=name, namespace=SPACE),
        spec=spec,
    )


def connect(kind):
    return TrainingClient(config_file=sys.argv[1], namespace=SPACE, job_kind=kind)


def verify(client, name):
    """Follow a job to its end, and return what its conditions and pods say (verify_job_e2e)."""
    result = client.wait_for_job_conditions(name, SPACE, wait_timeout=300, polling_interval=1)
    results = {
        "conditions": len(client.get_job_conditions(job=result)),
        "created": client.is_job_created(job=result),
        "succeeded": client.is_job_succeeded(job=result),
        "running": client.is_job_running(job=result),
        "restarting": client.is_job_restarting(job=result),
        "failed": client.is_job_failed(job=result),
        "pods": sorted(client.get_job_pod_names(name, SPACE)),
        "logs": client.get_job_logs(name, SPACE)[0],
    }
    client.delete_job(name, SPACE)
    return results


def submit_with_managers():
    """Submit jobs of three managers: ours, another, and one that there is not."""
    client = connect("PyTorchJob")
    results = {}
    for name, manager in (
        ("ours", "kubeflow.org/training-operator"),
        ("theirs", "kueue.x-k8s.io/multikueue"),
        ("nobodys", "kueue.x-k8s.io/other-controller"),
    ):
        try:
            client.create_job(job(*KINDS[0], name=name, managed_by=manager), namespace=SPACE)
        except RuntimeError as error:
            results["refused"] = str(error)
    listing = sorted(client.list_jobs(SPACE), key=lambda item: item.metadata.name)
    results["listed"] = [item.metadata.name for item in listing]
    results["ours"] = verify(client, "ours")
    other = client.get_job("theirs", SPACE)
    results["theirs"] = [] if other.status is None else client.get_job_conditions(job=other)
    client.delete_job("theirs", SPACE)
    return results


def change_job():
    """Suspend a job by an update, read that it is, resume it and follow its log to the end."""
    client = connect("PyTorchJob")
    expected = job(*KINDS[0], name="changed")
    expected.spec.run_policy.suspend = True
    client.create_job(expected, namespace=SPACE)
    suspended = client.wait_for_job_conditions(
        "changed",
        SPACE,
        expected_conditions={"Created"},
        wait_timeout=300,
        polling_interval=1,
    )
    results = {"suspended": [c.type for c in suspended.status.conditions if c.status == "True"]}
    expected.spec.run_policy.suspend = False
    client.update_job(expected, "changed", SPACE)
    # On a busy machine the job may have ended between two looks.
    client.wait_for_job_conditions(
        "changed",
        SPACE,
        expected_conditions={"Running", "Succeeded"},
        wait_timeout=300,
        polling_interval=1,
    )
    logs, _ = client.get_job_logs("changed", SPACE, follow=True)
    results["followed"] = logs
    return results | verify(client, "changed")


def main():
    results = {"managed": submit_with_managers(), "changed": change_job()}
    for kind, *rest in KINDS:
        client = connect(kind)
        name = kind.lower()
        client.create_job(job(kind, *rest, name=name), namespace=SPACE)
        results[kind] = verify(client, name)
    client = connect("PyTorchJob")
    client.create_job(
        name="from-func", namespace=SPACE, train_func=lambda: print("trained"), num_workers=3
    )
    results["from a function"] = verify(client, "from-func")
    client.create_job(
        name="from-image", namespace=SPACE, base_image="example/hello:1", num_workers=1
    )
    results["from an image"] = verify(client, "from-image")
    print(json.dumps(results))


main()
