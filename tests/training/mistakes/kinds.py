"""Mistakes in kinds other than PyTorchJob."""

from __future__ import annotations

from tests.training.mistakes.manifest_edits import (
    Spoil,
    set_elastic_policy,
    set_run_policy,
    set_spec,
    unknown_field,
)

OF_KINDS: dict[str, tuple[str, Spoil, str, str, str]] = {
    "no launcher": (
        "MPIJob",
        lambda it: it["spec"]["mpiReplicaSpecs"].pop("Launcher"),
        "spec.mpiReplicaSpecs[Launcher]",
        "is required",
        "",
    ),
    "two launchers": (
        "MPIJob",
        lambda it: it["spec"]["mpiReplicaSpecs"]["Launcher"].update(replicas=2),
        "spec.mpiReplicaSpecs[Launcher].replicas",
        "must be 1",
        "a job has one Launcher; further replicas are Workers",
    ),
    "slots": (
        "MPIJob",
        set_spec(slotsPerWorker=0),
        "spec.slotsPerWorker",
        "must be at least 1, not 0",
        "",
    ),
    "legacy clean pod policy": (
        "MPIJob",
        set_spec(cleanPodPolicy="Al"),
        "spec.cleanPodPolicy",
        "cannot be 'Al'",
        "did you mean 'All'?",
    ),
    "no master": (
        "XGBoostJob",
        lambda it: it["spec"]["xgbReplicaSpecs"].pop("Master"),
        "spec.xgbReplicaSpecs[Master]",
        "is required",
        "",
    ),
    "JAX has workers only": (
        "JAXJob",
        lambda it: it["spec"]["jaxReplicaSpecs"].update(
            Master=it["spec"]["jaxReplicaSpecs"]["Worker"]
        ),
        "spec.jaxReplicaSpecs[Master]",
        "a JAXJob has no such replica type",
        "one of Worker",
    ),
    "JAX manager": (
        "JAXJob",
        set_run_policy(managedBy="me"),
        "spec.runPolicy.managedBy",
        "cannot be 'me'",
        "one of kubeflow.org/training-operator, kueue.x-k8s.io/multikueue",
    ),
    "TF replica type": (
        "TFJob",
        lambda it: it["spec"]["tfReplicaSpecs"].update(
            Evalutor=it["spec"]["tfReplicaSpecs"]["Chief"]
        ),
        "spec.tfReplicaSpecs[Evalutor]",
        "a TFJob has no such replica type",
        "did you mean 'Evaluator'?",
    ),
    "TF chief and master": (
        "TFJob",
        lambda it: it["spec"]["tfReplicaSpecs"].update(
            Master=it["spec"]["tfReplicaSpecs"]["Chief"]
        ),
        "spec.tfReplicaSpecs[Master]",
        "cannot be combined with Chief",
        "keep one of the two: they mean the same",
    ),
    "TF elastic": (
        "TFJob",
        set_elastic_policy(minReplicas=1),
        "spec.elasticPolicy",
        *unknown_field("a TFJob has no such field"),
    ),
    "success policy": (
        "TFJob",
        set_spec(successPolicy="AllWorker"),
        "spec.successPolicy",
        "cannot be 'AllWorker'",
        "AllWorkers, or nothing",
    ),
    "job mode": (
        "MXJob",
        set_spec(jobMode="Train"),
        "spec.jobMode",
        "cannot be 'Train'",
        "did you mean 'MXTrain'?",
    ),
    "Paddle bounds": (
        "PaddleJob",
        set_elastic_policy(minReplicas=2, maxReplicas=1),
        "spec.elasticPolicy.minReplicas",
        "2 is more than maxReplicas, 1",
        "",
    ),
}
