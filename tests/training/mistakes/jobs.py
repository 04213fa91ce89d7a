"""Mistakes in a job itself: names, policies, fields of its kind."""

from __future__ import annotations

from tests.training.mistakes.manifest_edits import (
    LABEL_HINT,
    Mistake,
    change_worker,
    set_elastic_policy,
    set_metadata,
    set_run_policy,
    set_scheduling_policy,
    set_spec,
    unknown_field,
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
    "top field": (lambda it: it.update(sepc={}), "sepc", *unknown_field("did you mean 'spec'?")),
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
        "",
    ),
    **{
        f"name {name}": (
            set_metadata(name=name),
            "metadata.name",
            f"invalid job name '{name}'",
            "use lower-case letters, digits and '-'; start with a letter, don't end with '-'",
        )
        for name in ("Mnist", "1job", "a.b", "job-", "a_b", "é")
    },
    "name is a number": (
        set_metadata(name=7),
        "metadata.name",
        "must be a string, not the number 7",
        'quote it: "7"',
    ),
    "long name": (
        set_metadata(name="a" * 55),
        "metadata.name",
        f"is too long: '{'a' * 55}-master-0' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "name too long for the last worker": (
        lambda it: (set_metadata(name="a" * 53)(it), change_worker(replicas=101)(it)),
        "metadata.name",
        f"is too long: '{'a' * 53}-worker-100' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "name too long for a worker to come": (
        lambda it: (set_metadata(name="a" * 54)(it), set_elastic_policy(maxReplicas=11)(it)),
        "metadata.name",
        f"is too long: '{'a' * 54}-worker-10' has 64 characters",
        "shorten it by 1: the limit is 63",
    ),
    "namespace": (
        set_metadata(namespace="My_Team"),
        "metadata.namespace",
        "invalid namespace 'My_Team'",
        LABEL_HINT,
    ),
    "label": (
        set_metadata(labels={"team": "a b"}),
        "metadata.labels[team]",
        "cannot be 'a b'",
        "use letters, digits, '-', '_' and '.', at most 63 characters",
    ),
    "label key": (
        set_metadata(labels={"a b": "c"}),
        "metadata.labels[a b]",
        "invalid label name",
        "",
    ),
    "annotation": (
        set_metadata(annotations={"on": True}),
        "metadata.annotations[on]",
        "must be a string, not true",
        'quote it: "true"',
    ),
    "metadata field": (
        set_metadata(lables={}),
        "metadata.lables",
        *unknown_field("did you mean 'labels'?"),
    ),
    # run policy
    "run policy": (
        set_spec(runpolicy={}),
        "spec.runpolicy",
        *unknown_field("did you mean 'runPolicy'?"),
    ),
    "run policy field": (
        set_run_policy(backofLimit=1),
        "spec.runPolicy.backofLimit",
        *unknown_field("did you mean 'backoffLimit'?"),
    ),
    "run policy field in the spec": (
        set_spec(cleanPodPolicy="All"),
        "spec.cleanPodPolicy",
        *unknown_field("move it to spec.runPolicy"),
    ),
    "run policy field like none": (
        set_run_policy(zzz=1),
        "spec.runPolicy.zzz",
        *unknown_field(RUN),
    ),
    "run policy is a list": (
        set_spec(runPolicy=[]),
        "spec.runPolicy",
        "must be a mapping, not a list",
        "",
    ),
    "clean pod policy": (
        set_run_policy(cleanPodPolicy="Runing"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'Runing'",
        "did you mean 'Running'?",
    ),
    "clean pod policy by letter case": (
        set_run_policy(cleanPodPolicy="all"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'all'",
        "did you mean 'All'?",
    ),
    "clean pod policy like none": (
        set_run_policy(cleanPodPolicy="xyz"),
        "spec.runPolicy.cleanPodPolicy",
        "cannot be 'xyz'",
        "one of All, Running, None",
    ),
    "clean pod policy is a truth": (
        set_run_policy(cleanPodPolicy=False),
        "spec.runPolicy.cleanPodPolicy",
        "must be a string, not false",
        'quote it: "false"',
    ),
    **{
        f"negative {name}": (
            set_run_policy(**{name: -1}),
            f"spec.runPolicy.{name}",
            "must not be negative: -1",
            "0 or more",
        )
        for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
    },
    "huge": (
        set_run_policy(backoffLimit=2**31),
        "spec.runPolicy.backoffLimit",
        "must be at most 2147483647, not 2147483648",
        "",
    ),
    "number in quotes": (
        set_run_policy(backoffLimit="3"),
        "spec.runPolicy.backoffLimit",
        "must be an integer, not the string '3'",
        "remove the quotes: 3",
    ),
    "fraction": (
        set_run_policy(activeDeadlineSeconds=1.5),
        "spec.runPolicy.activeDeadlineSeconds",
        "must be an integer, not the number 1.5",
        "",
    ),
    "truth for a number": (
        set_run_policy(backoffLimit=True),
        "spec.runPolicy.backoffLimit",
        "must be an integer, not true",
        "",
    ),
    "suspend in quotes": (
        set_run_policy(suspend="True"),
        "spec.runPolicy.suspend",
        "must be true or false, not the string 'True'",
        "remove the quotes: true",
    ),
    "manager": (
        set_run_policy(managedBy="kubeflow.org/training-operater"),
        "spec.runPolicy.managedBy",
        "cannot be 'kubeflow.org/training-operater'",
        "did you mean 'kubeflow.org/training-operator'?",
    ),
    "scheduling field": (
        set_scheduling_policy(minAvailabel=1),
        "spec.runPolicy.schedulingPolicy.minAvailabel",
        *unknown_field("did you mean 'minAvailable'?"),
    ),
    "negative minimum": (
        set_scheduling_policy(minAvailable=-2),
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "must not be negative: -2",
        "0 or more",
    ),
    "odd resources": (
        set_scheduling_policy(minResources={"memory": "4 GB"}),
        "spec.runPolicy.schedulingPolicy.minResources[memory]",
        "must be a quantity, not the string '4 GB'",
        "for example 2, 500m or 4Gi",
    ),
    # elastic policy, and what only some kinds have
    "elastic field": (
        set_elastic_policy(minReplica=1),
        "spec.elasticPolicy.minReplica",
        *unknown_field("did you mean 'minReplicas'?"),
    ),
    "no replica at least": (
        set_elastic_policy(minReplicas=0),
        "spec.elasticPolicy.minReplicas",
        "must be at least 1, not 0",
        "",
    ),
    "bounds": (
        set_elastic_policy(minReplicas=3, maxReplicas=2),
        "spec.elasticPolicy.minReplicas",
        "3 is more than maxReplicas, 2",
        "",
    ),
    "rendezvous port": (
        set_elastic_policy(rdzvPort=65536),
        "spec.elasticPolicy.rdzvPort",
        "must be at most 65535, not 65536",
        "",
    ),
    "rendezvous setting": (
        set_elastic_policy(rdzvConf=[{"key": "a", "value": 1}]),
        "spec.elasticPolicy.rdzvConf[0].value",
        "must be a string, not the number 1",
        'quote it: "1"',
    ),
    "rendezvous backend": (
        set_elastic_policy(rdzvBackend="c10"),
        "spec.elasticPolicy.rdzvBackend",
        "cannot be 'c10'",
        "one of c10d, etcd, etcd-v2",
    ),
    "metrics": (
        set_elastic_policy(metrics={"type": "Resource"}),
        "spec.elasticPolicy.metrics",
        "must be a list, not a mapping",
        "",
    ),
    "processes twice": (
        set_spec(elasticPolicy={"nProcPerNode": 2}, nprocPerNode="2"),
        "spec.elasticPolicy.nProcPerNode",
        "cannot be combined with spec.nprocPerNode",
        "remove it: spec.nprocPerNode replaces it",
    ),
    "another kind's field": (
        set_spec(slotsPerWorker=1),
        "spec.slotsPerWorker",
        *unknown_field("fields: elasticPolicy, nprocPerNode, pytorchReplicaSpecs, runPolicy"),
    ),
    "processes a node": (
        set_spec(nprocPerNode="many"),
        "spec.nprocPerNode",
        "cannot be 'many'",
        "auto, cpu, gpu, or a number",
    ),
}
