"""Mistakes in a job itself: names, policies, fields of its kind."""

from __future__ import annotations

from tests.training.mistakes.spoil import (
    LABEL_HINT,
    Mistake,
    elastic,
    gang,
    meta,
    of_worker,
    policy,
    spec,
    unknown,
)

RUN = (
    "fields: activeDeadlineSeconds, backoffLimit, cleanPodPolicy, managedBy, schedulingPolicy,"
    " suspend, ttlSecondsAfterFinished"
)

CASES: dict[str, Mistake] = {
    # the document
    "version": (
        lambda it: it.update(apiVersion="kubeflow.org/v1beta2"),
        "apiVersion",
        "cannot be 'kubeflow.org/v1beta2'",
        "write kubeflow.org/v1",
    ),
    "kind": (lambda it: it.update(kind="TFJob"), "kind", "cannot be 'TFJob'", "write PyTorchJob"),
    "top field": (lambda it: it.update(sepc={}), "sepc", *unknown("did you mean 'spec'?")),
    "no spec": (lambda it: it.pop("spec"), "spec", "is required", ""),
    "spec is text": (
        lambda it: it.update(spec="x"),
        "spec",
        "must be a mapping, not the string 'x'",
        "",
    ),
    "status": (
        lambda it: it.update(status={"conditions": [{"type": "Odd", "status": "True"}]}),
        "status",
        "invalid status: Invalid enum value 'Odd' - at `$.conditions[0].type`",
        "remove it: only the controller writes it",
    ),
    # names
    "no name": (lambda it: it["metadata"].pop("name"), "metadata.name", "is required", ""),
    "generated name": (
        lambda it: it.update(metadata={"generateName": "job-"}),
        "metadata.name",
        "is required",
        "set name: generateName is not supported",
    ),
    **{
        f"name {name}": (
            meta(name=name),
            "metadata.name",
            f"invalid job name '{name}'",
            "use lower-case letters, digits and '-'; start with a letter, don't end with '-'",
        )
        for name in ("Mnist", "1job", "a.b", "job-", "a_b", "é")
    },
    "name is a number": (
        meta(name=7),
        "metadata.name",
        "must be a string, not the number 7",
        'quote it: "7"',
    ),
    "long name": (
        meta(name="a" * 55),
        "metadata.name",
        f"is too long: '{'a' * 55}-master-0' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "name too long for the last worker": (
        lambda it: (meta(name="a" * 53)(it), of_worker(replicas=101)(it)),
        "metadata.name",
        f"is too long: '{'a' * 53}-worker-100' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "name too long for a worker to come": (
        lambda it: (meta(name="a" * 54)(it), elastic(maxReplicas=11)(it)),
        "metadata.name",
        f"is too long: '{'a' * 54}-worker-10' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "namespace": (
        meta(namespace="My_Team"),
        "metadata.namespace",
        "invalid namespace 'My_Team'",
        LABEL_HINT,
    ),
    "label": (
        meta(labels={"team": "a b"}),
        "metadata.labels[team]",
        "cannot be 'a b'",
        "use letters, digits, '-', '_' and '.', at most 63 characters",
    ),
    "label key": (
        meta(labels={"a b": "c"}),
        "metadata.labels[a b]",
        "invalid label name",
        "",
    ),
    "annotation": (
        meta(annotations={"on": True}),
        "metadata.annotations[on]",
        "must be a string, not true",
        'quote it: "true"',
    ),
    "metadata field": (
        meta(lables={}),
        "metadata.lables",
        *unknown("did you mean 'labels'?"),
    ),
    # run policy
    "run policy": (spec(runpolicy={}), "spec.runpolicy", *unknown("did you mean 'runPolicy'?")),
    "run policy field": (
        policy(backofLimit=1),
        "spec.runPolicy.backofLimit",
        *unknown("did you mean 'backoffLimit'?"),
    ),
    "run policy field in the spec": (
        spec(cleanPodPolicy="All"),
        "spec.cleanPodPolicy",
        *unknown("move it to spec.runPolicy"),
    ),
    "run policy field like none": (policy(zzz=1), "spec.runPolicy.zzz", *unknown(RUN)),
    "run policy is a list": (
        spec(runPolicy=[]),
        "spec.runPolicy",
        "must be a mapping, not a list",
        "",
    ),
    "clean pod policy": (
        policy(cleanPodPolicy="Runing"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'Runing'",
        "did you mean 'Running'?",
    ),
    "clean pod policy by letter case": (
        policy(cleanPodPolicy="all"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'all'",
        "did you mean 'All'?",
    ),
    "clean pod policy like none": (
        policy(cleanPodPolicy="xyz"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'xyz'",
        "one of All, Running, None",
    ),
    "clean pod policy is a truth": (
        policy(cleanPodPolicy=False),
        "spec.runPolicy.cleanPodPolicy",
        "must be a string, not false",
        'quote it: "false"',
    ),
    **{
        f"negative {name}": (
            policy(**{name: -1}),
            f"spec.runPolicy.{name}",
            "must not be negative: -1",
            "0 or more",
        )
        for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
    },
    "huge": (
        policy(backoffLimit=2**31),
        "spec.runPolicy.backoffLimit",
        "must be at most 2147483647, not 2147483648",
        "",
    ),
    "number in quotes": (
        policy(backoffLimit="3"),
        "spec.runPolicy.backoffLimit",
        "must be an integer, not the string '3'",
        "remove the quotes: 3",
    ),
    "fraction": (
        policy(activeDeadlineSeconds=1.5),
        "spec.runPolicy.activeDeadlineSeconds",
        "must be an integer, not the number 1.5",
        "",
    ),
    "truth for a number": (
        policy(backoffLimit=True),
        "spec.runPolicy.backoffLimit",
        "must be an integer, not true",
        "",
    ),
    "suspend in quotes": (
        policy(suspend="True"),
        "spec.runPolicy.suspend",
        "must be true or false, not the string 'True'",
        "remove the quotes: true",
    ),
    "manager": (
        policy(managedBy="kubeflow.org/training-operater"),
        "spec.runPolicy.managedBy",
        "cannot be 'kubeflow.org/training-operater'",
        "did you mean 'kubeflow.org/training-operator'?",
    ),
    "scheduling field": (
        gang(minAvailabel=1),
        "spec.runPolicy.schedulingPolicy.minAvailabel",
        *unknown("did you mean 'minAvailable'?"),
    ),
    "negative minimum": (
        gang(minAvailable=-2),
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "must not be negative: -2",
        "0 or more",
    ),
    "odd resources": (
        gang(minResources={"memory": "4 GB"}),
        "spec.runPolicy.schedulingPolicy.minResources[memory]",
        "must be a quantity, not the string '4 GB'",
        "for example 2, 500m or 4Gi",
    ),
    # elastic policy, and what only some kinds have
    "elastic field": (
        elastic(minReplica=1),
        "spec.elasticPolicy.minReplica",
        *unknown("did you mean 'minReplicas'?"),
    ),
    "no replica at least": (
        elastic(minReplicas=0),
        "spec.elasticPolicy.minReplicas",
        "must be at least 1, not 0",
        "",
    ),
    "bounds": (
        elastic(minReplicas=3, maxReplicas=2),
        "spec.elasticPolicy.minReplicas",
        "3 is more than maxReplicas, 2",
        "",
    ),
    "rendezvous port": (
        elastic(rdzvPort=65536),
        "spec.elasticPolicy.rdzvPort",
        "must be at most 65535, not 65536",
        "",
    ),
    "rendezvous setting": (
        elastic(rdzvConf=[{"key": "a", "value": 1}]),
        "spec.elasticPolicy.rdzvConf[0].value",
        "must be a string, not the number 1",
        'quote it: "1"',
    ),
    "rendezvous backend": (
        elastic(rdzvBackend="c10"),
        "spec.elasticPolicy.rdzvBackend",
        "cannot be 'c10'",
        "one of c10d, etcd, etcd-v2",
    ),
    "metrics": (
        elastic(metrics={"type": "Resource"}),
        "spec.elasticPolicy.metrics",
        "must be a list, not a mapping",
        "",
    ),
    "processes twice": (
        spec(elasticPolicy={"nProcPerNode": 2}, nprocPerNode="2"),
        "spec.elasticPolicy.nProcPerNode",
        "cannot be combined with spec.nprocPerNode",
        "remove it: spec.nprocPerNode replaces it",
    ),
    "another kind's field": (
        spec(slotsPerWorker=1),
        "spec.slotsPerWorker",
        *unknown("fields: elasticPolicy, nprocPerNode, pytorchReplicaSpecs, runPolicy"),
    ),
    "processes a node": (
        spec(nprocPerNode="many"),
        "spec.nprocPerNode",
        "cannot be 'many'",
        "auto, cpu, gpu, or a number",
    ),
}
