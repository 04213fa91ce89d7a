"""A user's program with the kubeflow-training SDK: run by its own environment, not by danlu's."""

# What it imports is not in danlu's environment.
# mypy: ignore-errors

import json
import sys

from kubeflow.training import (
    KubeflowOrgV1PyTorchJob,
    KubeflowOrgV1PyTorchJobSpec,
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    KubeflowOrgV1TFJob,
    KubeflowOrgV1TFJobSpec,
    KubeflowOrgV1XGBoostJob,
    KubeflowOrgV1XGBoostJobSpec,
    TrainingClient,
)
from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

SPACE = sys.argv[2]


def replica(container, number):
    box = V1Container(name=container, image="example/train:1", command=["train"])
    template = V1PodTemplateSpec(spec=V1PodSpec(containers=[box]))
    return KubeflowOrgV1ReplicaSpec(replicas=number, restart_policy="Never", template=template)


def job(model, spec, name):
    return model(
        api_version="kubeflow.org/v1",
        kind=model.__name__.removeprefix("KubeflowOrgV1"),
        metadata=V1ObjectMeta(name=name, namespace=SPACE),
        spec=spec,
    )


def jobs():
    policy = KubeflowOrgV1RunPolicy(clean_pod_policy="None")
    yield job(
        KubeflowOrgV1PyTorchJob,
        KubeflowOrgV1PyTorchJobSpec(
            run_policy=policy,
            pytorch_replica_specs={
                "Master": replica("pytorch", 1),
                "Worker": replica("pytorch", 2),
            },
        ),
        "py",
    )
    yield job(
        KubeflowOrgV1TFJob,
        KubeflowOrgV1TFJobSpec(
            run_policy=policy,
            tf_replica_specs={
                "PS": replica("tensorflow", 1),
                "Worker": replica("tensorflow", 2),
            },
        ),
        "tf",
    )
    yield job(
        KubeflowOrgV1XGBoostJob,
        KubeflowOrgV1XGBoostJobSpec(
            run_policy=policy,
            xgb_replica_specs={
                "Master": replica("xgboost", 1),
                "Worker": replica("xgboost", 1),
            },
        ),
        "xgb",
    )


def connect_client(kind):
    """A client; its get_job_logs only looks for the client's own kind."""
    return TrainingClient(config_file=sys.argv[1], namespace=SPACE, job_kind=kind)


def follow_job(client, name):
    """Follow one job to its end through the SDK."""
    result = client.wait_for_job_conditions(name=name, wait_timeout=300, polling_interval=1)
    logs, events = client.get_job_logs(name=name, is_master=False, verbose=True)
    results = {
        "state": [
            condition.type for condition in result.status.conditions if condition.status == "True"
        ],
        "reasons": [condition.reason for condition in client.get_job_conditions(name=name)],
        "succeeded": client.is_job_succeeded(name=name),
        "listed": [job.metadata.name for job in client.list_jobs()],
        "pods": sorted(client.get_job_pod_names(name=name)),
        "master": client.get_job_pod_names(name=name, is_master=True),
        "replicas": {
            type: replica.succeeded for type, replica in result.status.replica_statuses.items()
        },
        "logs": logs,
        "events": sorted(events),
    }
    client.delete_job(name=name)
    return results


def main():
    results = {}
    for job in jobs():
        client = connect_client(job.kind)
        client.create_job(job)
        results[job.kind] = follow_job(client, job.metadata.name)
    client = connect_client("PyTorchJob")
    client.create_job(
        name="function",
        train_func=lambda: print("trained"),
        base_image="example/train:1",
        num_workers=2,
    )
    results["function"] = follow_job(client, "function")
    print(json.dumps(results))


main()
