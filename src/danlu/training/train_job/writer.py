"""Write a job as a TrainJob and its runtime, so that reading both gives the same job."""

from __future__ import annotations

from typing import Any

from danlu.training.frameworks.train_job import (
    FRAMEWORK,
    INITIALIZERS,
    LAUNCHER,
    MPI,
    NODE,
    POLICIES_FIELD,
    find_policy,
)
from danlu.training.manifest import drop_empty
from danlu.training.pod_template import change_templates, list_containers
from danlu.training.train_job.runtimes import ANCESTOR_LABEL, FRAMEWORK_LABEL
from danlu.training.train_job.schema import API_VERSION, MANAGERS
from danlu.training.train_job.volume_claims import remove_claim_volumes, select_policies
from danlu.training.types import MANAGER, Job, ReplicaSpec, ReplicaType


def write_train_job(job: Job) -> list[dict[str, Any]]:
    """Return a TrainingRuntime with the templates of the job, and the TrainJob that uses it."""
    namespace = {"namespace": job.namespace} if job.namespace != "default" else {}
    manager = job.run_policy.managed_by
    policy, processes = job.options["policy"], job.options["processes"]
    restarts = job.job_restart_policy
    trained = _find_trainer_step(job)
    claims = job.options.get(POLICIES_FIELD, ())
    templates = [spec.template for spec in job.replicas.values()]
    policies = select_policies(claims, templates, job.name)
    job = change_templates(job, lambda each: remove_claim_volumes(each, claims, job.name))
    targets = [
        {"jobName": name, "containerNames": containers}
        for name, containers in job.options.get("envInjection", {}).items()
    ]
    rules = {
        "runLauncherAsNode": job.options.get("runLauncherAsNode"),
        "sshAuthMountPath": job.options.get("sshAuthMountPath"),
        "envInjection": {"targets": targets} if targets else None,
    }
    if policy == MPI:
        rules["numProcPerNode"] = processes
    template = {
        "replicatedJobs": [
            _replicated_job(job, type, spec, trained) for type, spec in job.replicas.items()
        ],
        "successPolicy": job.options["successPolicy"],
        "network": {
            **job.options.get("network", {}),
            **drop_empty({"subdomain": job.options.get("subdomain")}),
        },
        "failurePolicy": drop_empty(
            {
                "maxRestarts": restarts.max_restarts if restarts else None,
                "restartStrategy": job.options.get("restartStrategy"),
            }
        ),
        "ttlSecondsAfterFinished": job.run_policy.ttl_seconds_after_finished,
        POLICIES_FIELD: policies,
    }
    runtime = {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": {
            "name": job.name,
            **namespace,
            "labels": {FRAMEWORK_LABEL: policy or "plain"},
        },
        "spec": {
            "mlPolicy": {
                "numNodes": job.replica_count(trained),
                **({policy: drop_empty(rules)} if policy else {}),
            },
            **drop_empty({"podGroupPolicy": job.options.get("podGroupPolicy")}),
            "template": {"spec": drop_empty(template)},
        },
    }
    counted = find_policy(policy).takes_processes and processes != "auto"
    trainer = {"numProcPerNode": processes} if counted else {}
    metadata = {
        "name": job.name,
        **namespace,
        **drop_empty({"labels": dict(job.labels), "annotations": dict(job.annotations)}),
    }
    spec = {
        "suspend": job.run_policy.suspend or None,
        "activeDeadlineSeconds": job.run_policy.active_deadline_seconds,
        "managedBy": MANAGERS[0] if manager == MANAGER else manager,
    }
    train_job = {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": job.name},
            **({"trainer": trainer} if job.options["hasTrainer"] else {}),
            **drop_empty(spec),
        },
    }
    return [runtime, train_job]


def _find_trainer_step(job: Job) -> ReplicaType:
    """Return what ``spec.trainer`` configures: a launcher if it has the container."""
    spec = job.replicas.get(LAUNCHER)
    containers = list_containers(spec.template) if spec else ()
    found = any(container.get("name") == FRAMEWORK.container for container in containers)
    return LAUNCHER if found else NODE


def _replicated_job(
    job: Job, type: ReplicaType, spec: ReplicaSpec, trained: ReplicaType
) -> dict[str, Any]:
    step = {trained: "trainer"}.get(type) or (str(type) if type in INITIALIZERS else None)
    inner = {
        "parallelism": spec.replicas if spec.replicas != 1 and type != trained else None,
        "backoffLimit": job.run_policy.backoff_limit,
        "template": spec.template,
    }
    metadata = dict(job.options.get("jobMetadata", {}).get(type, {}))
    metadata["labels"] = {**metadata.get("labels", {}), **({ANCESTOR_LABEL: step} if step else {})}
    template = {**drop_empty({"metadata": drop_empty(metadata)}), "spec": drop_empty(inner)}
    depends_on = [{"name": str(each.type), "status": each.status} for each in spec.depends_on]
    return {"name": str(type), **drop_empty({"dependsOn": depends_on}), "template": template}
