"""Mistakes in replicas and in the templates of their pods."""

from __future__ import annotations

from tests.training.mistakes.manifest_edits import (
    BOX,
    LABEL_HINT,
    POD,
    Mistake,
    R,
    W,
    change_container,
    change_pod,
    change_worker,
    first_container,
    pod_spec,
    rename_replicas,
    set_spec,
    unknown_field,
    worker_spec,
)

CASES: dict[str, Mistake] = {
    # replicas
    "replica map by letter case": (
        lambda it: it["spec"].update(pyTorchReplicaSpecs={}),
        "spec.pyTorchReplicaSpecs",
        *unknown_field("did you mean 'pytorchReplicaSpecs'?"),
    ),
    "no replica map": (lambda it: it.update(spec={}), R, "is required", ""),
    "empty replica map": (
        set_spec(pytorchReplicaSpecs={}),
        R,
        "must not be empty",
        "one or more of Master, Worker",
    ),
    "replica type": (
        rename_replicas("Worker", "Wrker"),
        f"{R}[Wrker]",
        "a PyTorchJob has no such replica type",
        "did you mean 'Worker'?",
    ),
    "replica type like none": (
        rename_replicas("Worker", "PS"),
        f"{R}[PS]",
        "a PyTorchJob has no such replica type",
        "one of Master, Worker",
    ),
    "replica type twice": (
        lambda it: it["spec"]["pytorchReplicaSpecs"].update(worker=worker_spec(it)),
        f"{R}[worker]",
        "duplicate replica type Worker",
        "",
    ),
    "null replica spec": (
        lambda it: it["spec"]["pytorchReplicaSpecs"].update(Worker=None),
        W,
        "must not be empty",
        "",
    ),
    "two masters": (
        lambda it: it["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas=2),
        f"{R}[Master].replicas",
        "must be 1",
        "a job has one Master; further replicas are Workers",
    ),
    "no worker of them": (change_worker(replicas=0), f"{W}.replicas", "must be at least 1", ""),
    "negative replicas": (
        change_worker(replicas=-1),
        f"{W}.replicas",
        "must not be negative: -1",
        "0 or more",
    ),
    "replica field": (
        change_worker(replica=1),
        f"{W}.replica",
        *unknown_field("did you mean 'replicas'?"),
    ),
    "restart policy": (
        change_worker(restartPolicy="Onfailure"),
        f"{W}.restartPolicy",
        "cannot be 'Onfailure'",
        "did you mean 'OnFailure'?",
    ),
    "no template": (lambda it: worker_spec(it).pop("template"), f"{W}.template", "is required", ""),
    "template field": (
        lambda it: worker_spec(it)["template"].update(kind="Pod"),
        f"{W}.template.kind",
        *unknown_field("fields: metadata, spec"),
    ),
    "template label": (
        lambda it: worker_spec(it)["template"].update(metadata={"labels": {"a": 1}}),
        f"{W}.template.metadata.labels[a]",
        "must be a string, not the number 1",
        'quote it: "1"',
    ),
    # pods
    "no pod": (
        change_worker(template={"spec": None}),
        f"{W}.template.spec",
        "is required",
        "",
    ),
    "pod field": (
        change_pod(volume=[]),
        f"{POD}.volume",
        *unknown_field("did you mean 'volumes'?"),
    ),
    "pod field like none": (change_pod(qqqq=1), f"{POD}.qqqq", *unknown_field("")),
    "no containers": (
        change_pod(containers=[]),
        f"{POD}.containers",
        "must not be empty",
        "add one named 'pytorch'",
    ),
    "containers are no list": (
        change_pod(containers={"name": "pytorch"}),
        f"{POD}.containers",
        "must be a list, not a mapping",
        "",
    ),
    "null container": (
        lambda it: pod_spec(it)["containers"].append(None),
        f"{POD}.containers[1]",
        "must not be empty",
        "",
    ),
    "container by another name": (
        change_container(name="pytorh"),
        f"{BOX}.name",
        "a PyTorchJob needs a container named 'pytorch'",
        "rename this one to 'pytorch'",
    ),
    "the nearest of two containers": (
        change_pod(containers=[{"name": "proxy", "image": "a"}, {"name": "torch", "image": "b"}]),
        f"{POD}.containers[1].name",
        "a PyTorchJob needs a container named 'pytorch'",
        "rename this one to 'pytorch'",
    ),
    "container twice": (
        change_pod(initContainers=[{"name": "pytorch", "image": "a"}]),
        f"{POD}.initContainers[0].name",
        "duplicate container 'pytorch'",
        "",
    ),
    "container name": (
        change_pod(initContainers=[{"name": "Wait_for", "image": "a"}]),
        f"{POD}.initContainers[0].name",
        "invalid container name 'Wait_for'",
        LABEL_HINT,
    ),
    "no image": (lambda it: first_container(it).pop("image"), f"{BOX}.image", "is required", ""),
    "empty image": (change_container(image=""), f"{BOX}.image", "is required", ""),
    "no image of a sidecar": (
        lambda it: pod_spec(it)["containers"].append({"name": "proxy"}),
        f"{POD}.containers[1].image",
        "is required",
        "",
    ),
    "container field": (
        change_container(comand=[]),
        f"{BOX}.comand",
        *unknown_field("did you mean 'command'?"),
    ),
    "command is text": (
        change_container(command="python train.py"),
        f"{BOX}.command",
        "must be a list, not the string 'python train.py'",
        "",
    ),
    "argument is a number": (
        change_container(args=["--epochs", 3]),
        f"{BOX}.args[1]",
        "must be a string, not the number 3",
        'quote it: "3"',
    ),
    "pull policy": (
        change_container(imagePullPolicy="Alway"),
        f"{BOX}.imagePullPolicy",
        "cannot be 'Alway'",
        "did you mean 'Always'?",
    ),
    "variable is a number": (
        change_container(env=[{"name": "A", "value": 1}]),
        f"{BOX}.env[0].value",
        "must be a string, not the number 1",
        'quote it: "1"',
    ),
    "variable without a name": (
        change_container(env=[{"value": "a"}]),
        f"{BOX}.env[0].name",
        "is required",
        "",
    ),
    "variable's name": (
        change_container(env=[{"name": "1A", "value": "a"}]),
        f"{BOX}.env[0].name",
        "invalid variable name '1A'",
        "use letters, digits, '_', '-' and '.', not starting with a digit",
    ),
    "variable of two values": (
        change_container(env=[{"name": "A", "value": "a", "valueFrom": {"fieldRef": {}}}]),
        f"{BOX}.env[0].valueFrom",
        "cannot be combined with value",
        "keep one of the two",
    ),
    "port without a number": (
        change_container(ports=[{"name": "a"}]),
        f"{BOX}.ports[0].containerPort",
        "is required",
        "",
    ),
    "port out of range": (
        change_container(ports=[{"containerPort": 0}]),
        f"{BOX}.ports[0].containerPort",
        "must be at least 1, not 0",
        "",
    ),
    "port's name": (
        change_container(ports=[{"name": "pytorchjob-port-2", "containerPort": 1}]),
        f"{BOX}.ports[0].name",
        "invalid port name 'pytorchjob-port-2'",
        "use at most 15 lower-case letters, digits and '-', including a letter",
    ),
    "port twice": (
        change_container(
            ports=[{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]
        ),
        f"{BOX}.ports[1].name",
        "duplicate port 'a'",
        "",
    ),
    "resources field": (
        change_container(resources={"limit": {}}),
        f"{BOX}.resources.limit",
        *unknown_field("did you mean 'limits'?"),
    ),
    "resources": (
        change_container(resources={"limits": {"memory": "lots"}}),
        f"{BOX}.resources.limits[memory]",
        "must be a quantity, not the string 'lots'",
        "for example 2, 500m or 4Gi",
    ),
    "negative resources": (
        change_container(resources={"requests": {"cpu": -1}}),
        f"{BOX}.resources.requests[cpu]",
        "must not be negative: -1",
        "",
    ),
    "mount of no volume": (
        lambda it: (
            change_pod(volumes=[{"name": "training", "emptyDir": {}}])(it),
            change_container(volumeMounts=[{"name": "trainig", "mountPath": "/train"}])(it),
        ),
        f"{BOX}.volumeMounts[0].name",
        "volume 'trainig' not found",
        "did you mean 'training'?",
    ),
    "mount where the pod has no volumes": (
        change_container(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        f"{BOX}.volumeMounts[0].name",
        "volume 'data' not found",
        "the pod has no volumes",
    ),
    "mount nowhere": (
        lambda it: (
            change_pod(volumes=[{"name": "data", "emptyDir": {}}])(it),
            change_container(volumeMounts=[{"name": "data"}])(it),
        ),
        f"{BOX}.volumeMounts[0].mountPath",
        "is required",
        "",
    ),
    "volume twice": (
        change_pod(volumes=[{"name": "data"}, {"name": "data"}]),
        f"{POD}.volumes[1].name",
        "duplicate volume 'data'",
        "",
    ),
    "volume of no known kind": (
        change_pod(volumes=[{"name": "data", "emptydir": {}}]),
        f"{POD}.volumes[0].emptydir",
        *unknown_field("did you mean 'emptyDir'?"),
    ),
}
