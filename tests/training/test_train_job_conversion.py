"""Jobs of ``kubeflow.org/v1`` as TrainJobs, and back: what is kept, named and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.training.document import ManifestError, read_manifest_file
from danlu.training.framework import Framework
from danlu.training.manifest import read_job, write_job
from danlu.training.registry import TRAIN_JOB, find_job_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.train_job.conversion import Conversion, convert_to_train_job, convert_to_v1
from danlu.training.train_job.reader import read_train_job
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job, JobRestartPolicy, ReplicaId, ReplicaType, RestartPolicy
from tests.training.manifests import KINDS, manifest
from tests.training.train_jobs import read_text, write_and_read

NODE = ReplicaType("node")
NO_LIMIT = 2**31 - 1
EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parent / "examples").glob("*.yaml"))}

#: What examples of the training operator lose, by the last part of the path.
ENDING, VARIABLES = "Master]", "ReplicaSpecs"
LOST = {
    "jax-cpu-demo": [VARIABLES],
    "jax-spmd-mnist-gloo": [VARIABLES],
    "pytorch-deepspeed": [ENDING],
    "pytorch-elastic-echo": ["elasticPolicy", "nprocPerNode"],
    "pytorch-elastic-imagenet": ["elasticPolicy", "nprocPerNode"],
    "pytorch-mnist-gloo": [VARIABLES, ENDING],
    "pytorch-mnist-mpi": [VARIABLES, ENDING],
    "pytorch-mnist-nccl": [VARIABLES, ENDING],
    "pytorch-sendrecv": [VARIABLES, ENDING],
    "pytorch-simple": [VARIABLES, ENDING, "imagePullPolicy"],
    "pytorch-torchrun-cpu": [ENDING],
    "tensorflow-mnist-with-summaries": [],
    "xgboost-iris-predict": [VARIABLES, ENDING, "restartPolicy"],
    "xgboost-iris-predict-local": [VARIABLES, ENDING, "restartPolicy"],
    "xgboost-iris-train": [VARIABLES, ENDING, "restartPolicy"],
    "xgboost-iris-train-local": [VARIABLES, ENDING, "restartPolicy"],
    "xgboost-lightgbm": [VARIABLES, ENDING, "restartPolicy"],
    "xgboost-rabit": [VARIABLES, ENDING],
}
#: Why others are refused.
REFUSED = {
    "mpi-tensorflow-mnist": "a TrainJob has no Launcher",
    "mpi-tensorflow-mnist-elastic": "a TrainJob has no Launcher",
    "mxnet-byteps": "a TrainJob has no Scheduler",
    "mxnet-dist": "a TrainJob has no Scheduler",
    "mxnet-dist-gpu": "a TrainJob has no Scheduler",
    "mxnet-tune": "a TrainJob has no TunerServer",
    "paddle-simple-cpu": "its 2 nodes would not find one another: no runtime sets PADDLE_JOB_ID",
    "paddle-simple-gpu": "its 2 nodes would not find one another: no runtime sets PADDLE_JOB_ID",
    "tensorflow-dist-mnist": "a TrainJob has no PS",
    "tensorflow-multi-worker": "its 2 nodes would not find one another: no runtime sets TF_CONFIG",
    "tensorflow-simple": "its 2 nodes would not find one another: no runtime sets TF_CONFIG",
}


def convert_document(document: dict[str, Any]) -> Conversion:
    framework = KINDS[document["kind"]]
    return convert_to_train_job(read_job(document, framework), framework, document)


def convert_example(name: str) -> Conversion:
    file = read_manifest_file(EXAMPLES[name].read_text(), f"{name}.yaml")
    return convert_to_train_job(read_job(file.job, file.framework), file.framework, file.job)


def variables_of(job: Job, framework: Framework, replica: ReplicaId) -> dict[str, Any]:
    pod = render_pod(job, framework, replica, ServiceTopology(job, framework))
    return {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}


def pytorch(
    command: tuple[str, ...] = ("torchrun", "train.py"),
    *,
    spec: dict[str, Any] | None = None,
    master: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a PyTorchJob with changed fields: of its spec, its replicas, their container."""
    document = manifest("PyTorchJob")
    document["metadata"] |= metadata
    document["spec"] |= {"nprocPerNode": "1", **(spec or {})}
    replicas = document["spec"]["pytorchReplicaSpecs"]
    for type, changes in (("Master", master), ("Worker", worker)):
        replicas[type] |= changes or {}
        main = replicas[type]["template"]["spec"]["containers"][0]
        main |= {"command": list(command), **(container or {})}
    copied: dict[str, Any] = json.loads(json.dumps(document))
    return copied


# -- the training operator's examples -------------------------------------------------------------


def test_every_example_is_converted_or_refused() -> None:
    assert sorted([*LOST, *REFUSED]) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", LOST)
def test_an_example_is_converted_and_its_losses_are_named(name: str) -> None:
    conversion = convert_example(name)
    paths = [finding.path for finding in conversion.lost]
    assert len(paths) == len(LOST[name]), conversion.lost
    assert all(any(path.endswith(end) for path in paths) for end in LOST[name]), paths
    assert write_and_read(conversion.job) == conversion.job


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_that_would_be_another_job_is_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        convert_example(name)
    assert "cannot be written as a TrainJob" in caught.value.message
    assert any(finding.message.startswith(REFUSED[name]) for finding in caught.value.findings)
    assert caught.value.span is not None


# -- what is kept ---------------------------------------------------------------------------------


def test_torchrun_gets_the_same_rendezvous_on_every_node() -> None:
    document = pytorch(spec={"nprocPerNode": "4"})
    job = read_job(document, KINDS["PyTorchJob"])
    converted = convert_document(document).job
    assert converted.replica_count(NODE) == 3
    replicas = [ReplicaId(ReplicaType("Master"), 0)]
    replicas += [ReplicaId(ReplicaType("Worker"), index) for index in (0, 1)]
    for rank, replica in enumerate(replicas):
        old = variables_of(job, KINDS["PyTorchJob"], replica)
        new = variables_of(converted, TRAIN_JOB, ReplicaId(NODE, rank))
        same = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PYTHONUNBUFFERED")
        assert {name: new[name] for name in same} == {name: old[name] for name in same}
        addresses = ("job-master-0", "job-node-0-0.job")
        assert (old["PET_MASTER_ADDR"], new["PET_MASTER_ADDR"]) == addresses


def test_the_pod_and_the_metadata_are_kept() -> None:
    pod = {
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeSelector": {"disk": "ssd"},
    }
    reference = {"resourceFieldRef": {"containerName": "pytorch", "resource": "limits.cpu"}}
    main = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["torchrun", "train.py"],
        "env": [{"name": "CPUS", "valueFrom": reference}],
        "resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {**pod, "containers": [main]}}
    document = pytorch(
        master={"template": template},
        worker={"template": template},
        namespace="team",
        labels={"kueue.x-k8s.io/queue-name": "queue"},
        annotations={"note": "text"},
    )
    job = convert_document(document).job
    assert (job.namespace, job.labels, job.annotations) == (
        "team",
        {"kueue.x-k8s.io/queue-name": "queue"},
        {"note": "text"},
    )
    written = job.replicas[NODE].template
    assert written["metadata"] == {"labels": {"a": "b"}}
    (node,) = written["spec"].pop("containers")
    assert written["spec"] == pod
    kept = ("image", "command", "resources", "volumeMounts")
    assert {name: node[name] for name in kept} == {name: main[name] for name in kept}
    assert node["env"][0]["valueFrom"]["resourceFieldRef"]["containerName"] == "node"
    assert "ports" not in node


def test_policies_of_the_job_are_kept() -> None:
    policy = {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 90, "suspend": True}
    conversion = convert_document(pytorch(spec={"runPolicy": {**policy, "backoffLimit": 3}}))
    run_policy = conversion.job.run_policy
    assert run_policy.ttl_seconds_after_finished == 60
    assert run_policy.active_deadline_seconds == 90
    assert (run_policy.suspend, run_policy.backoff_limit) == (True, 3)
    assert [finding.path for finding in conversion.lost] == ["spec.pytorchReplicaSpecs[Master]"]


@pytest.mark.parametrize(
    ("policy", "limit", "annotation", "backoff_limit", "together"),
    [
        ("Never", None, False, 0, None),
        ("Never", 3, False, 0, None),
        ("OnFailure", None, False, NO_LIMIT, None),
        ("OnFailure", 3, False, 3, None),
        ("OnFailure", 3, True, 0, JobRestartPolicy(3)),
        ("Never", 3, True, 0, JobRestartPolicy(3)),
        ("OnFailure", 0, True, 0, None),
        ("OnFailure", None, True, 0, JobRestartPolicy(NO_LIMIT)),
    ],
)
def test_restart_rules_are_those_of_jobs_and_job_sets(
    policy: str,
    limit: int | None,
    annotation: bool,
    backoff_limit: int,
    together: JobRestartPolicy | None,
) -> None:
    changes = {"restartPolicy": policy}
    run_policy = {} if limit is None else {"runPolicy": {"backoffLimit": limit}}
    annotations = {"danlu.dev/restart-policy": "Job"} if annotation else {}
    document = pytorch(spec=run_policy, master=changes, worker=changes, annotations=annotations)
    job = convert_document(document).job
    assert (job.run_policy.backoff_limit, job.job_restart_policy) == (backoff_limit, together)
    assert job.annotations == {}
    never = job.replicas[NODE].template["spec"].get("restartPolicy") == "Never"
    assert never == (backoff_limit == 0)
    assert write_and_read(job) == job


def test_gpus_leave_the_number_of_processes_to_torchrun() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    conversion = convert_document(pytorch(spec={"nprocPerNode": "auto"}, container=limits))
    assert conversion.job.options["processes"] == "auto"
    assert [finding.path for finding in conversion.lost] == ["spec.pytorchReplicaSpecs[Master]"]


# -- what is named --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        (
            pytorch(("python", "train.py")),
            "spec.pytorchReplicaSpecs",
            "does not set MASTER_PORT, MASTER_ADDR, WORLD_SIZE, RANK",
        ),
        (
            pytorch(("sh", "-c", "torchrun --node-rank=$RANK train.py")),
            "spec.pytorchReplicaSpecs",
            "does not set RANK",
        ),
        (
            pytorch(spec={"runPolicy": {"cleanPodPolicy": "All"}}),
            "spec.runPolicy.cleanPodPolicy",
            "All cannot be expressed",
        ),
        (
            pytorch(spec={"runPolicy": {"cleanPodPolicy": "None"}}),
            "spec.runPolicy.cleanPodPolicy",
            "None cannot be expressed",
        ),
        (
            pytorch(spec={"runPolicy": {"schedulingPolicy": {"queue": "q"}}}),
            "spec.runPolicy.schedulingPolicy.queue",
            "cannot be expressed",
        ),
        (
            pytorch(spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}),
            "spec.elasticPolicy",
            "(maxReplicas, minReplicas): there are always 3 nodes, and all must succeed",
        ),
        (
            pytorch(worker={"restartPolicy": "Never"}),
            "spec.pytorchReplicaSpecs[Worker].restartPolicy",
            "all nodes have that of the Master, OnFailure",
        ),
        (
            pytorch(master={"restartPolicy": "ExitCode"}, worker={"restartPolicy": "ExitCode"}),
            "spec.pytorchReplicaSpecs[Worker].restartPolicy",
            "restarted after any exit code",
        ),
        (
            pytorch(master={"restartPolicy": "Always"}, worker={"restartPolicy": "Always"}),
            "spec.pytorchReplicaSpecs[Master].restartPolicy",
            "a node that has succeeded is not restarted",
        ),
        (
            pytorch(container={"args": ["--to", "job-master-0"]}),
            "spec.pytorchReplicaSpecs[Master].template",
            "mentions job-master-0",
        ),
    ],
)
def test_what_a_train_job_cannot_express_is_named(
    document: dict[str, Any], path: str, message: str
) -> None:
    conversion = convert_document(document)
    found = {finding.path: finding.message for finding in conversion.lost}
    assert message in found.get(path, ""), found
    assert write_and_read(conversion.job) == conversion.job


# -- what is refused ------------------------------------------------------------------------------

OTHER_CONTAINER = {"name": "pytorch", "image": "other:1"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (
            pytorch(
                worker={"template": {"spec": {"containers": [{"name": "pytorch", "image": "b"}]}}}
            ),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image",
        ),
        (manifest("TFJob", Worker=1, Evaluator=1), "spec.tfReplicaSpecs[Evaluator]"),
        (manifest("PaddleJob", Master=1, Worker=1), "spec.paddleReplicaSpecs[Master]"),
        (manifest("MPIJob"), "spec.mpiReplicaSpecs[Launcher]"),
    ],
)
def test_nodes_that_differ_are_refused(document: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        convert_document(document)
    assert path in [finding.path for finding in caught.value.findings]


def test_a_deadline_that_has_passed_is_refused() -> None:
    with pytest.raises(ManifestError) as caught:
        convert_document(pytorch(spec={"runPolicy": {"activeDeadlineSeconds": 0}}))
    (finding,) = caught.value.findings
    assert finding.path == "spec.runPolicy.activeDeadlineSeconds"


def test_a_sidecar_with_the_name_of_the_node_is_refused() -> None:
    sidecar = {"name": "node", "image": "logs:1"}
    main = {"name": "pytorch", "image": "train:1", "command": ["torchrun", "train.py"]}
    template = {"template": {"spec": {"containers": [sidecar, main]}}}
    with pytest.raises(ManifestError) as caught:
        convert_document(pytorch(master=template, worker=template))
    messages = {finding.message for finding in caught.value.findings}
    assert messages == {"'node' is the name of a TrainJob's main container"}


def test_more_xgboost_workers_than_before_are_refused() -> None:
    document = manifest("XGBoostJob")
    for spec in document["spec"]["xgbReplicaSpecs"].values():
        (container,) = spec["template"]["spec"]["containers"]
        container["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    with pytest.raises(ManifestError) as caught:
        convert_document(document)
    assert caught.value.findings[0].message == "DMLC_NUM_WORKER would be 6 instead of 3"


# -- generated jobs -------------------------------------------------------------------------------


@st.composite
def v1_documents(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["PyTorchJob", "XGBoostJob", "JAXJob"]))
    sizes = {"Worker": draw(st.integers(1, 4))}
    if kind != "JAXJob" and (kind == "XGBoostJob" or draw(st.booleans())):
        sizes = {"Master": 1, **sizes}
    document = manifest(kind, **sizes)
    framework, spec = KINDS[kind], document["spec"]
    optional: dict[str, st.SearchStrategy[Any]] = {
        "backoffLimit": st.integers(0, 9),
        "ttlSecondsAfterFinished": st.integers(0, 99),
        "activeDeadlineSeconds": st.integers(1, 99),
        "suspend": st.booleans(),
        "cleanPodPolicy": st.sampled_from(["All", "Running", "None"]),
        "schedulingPolicy": st.just({"minAvailable": 1}),
    }
    spec["runPolicy"] = draw(st.fixed_dictionaries({}, optional=optional))
    if kind == "PyTorchJob" and draw(st.booleans()):
        spec["nprocPerNode"] = draw(st.sampled_from(["auto", "cpu", "1", "3"]))
    if draw(st.booleans()):
        document["metadata"]["annotations"] = {"danlu.dev/restart-policy": "Job", "kept": "yes"}
    command = draw(st.sampled_from([["python", "a.py"], ["torchrun", "a.py"], ["sh", "-c", "x"]]))
    changes = draw(
        st.fixed_dictionaries(
            {"command": st.just(command)},
            optional={
                "env": st.just([{"name": "A", "value": "b"}]),
                "ports": st.just([{"name": "web", "containerPort": 80}]),
                "resources": st.sampled_from(
                    [{"limits": {"cpu": "2"}}, {"limits": {"nvidia.com/gpu": 1}}]
                ),
            },
        )
    )
    policy = draw(st.sampled_from(["Never", "OnFailure"]))
    for replica in spec[framework.replicas_field].values():
        replica["restartPolicy"] = policy
        replica["template"]["spec"]["containers"][0] |= json.loads(json.dumps(changes))
    return document


@given(v1_documents())
@settings(deadline=None)
def test_a_generated_job_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    job = convert_document(document).job
    assert write_and_read(job) == job


@given(v1_documents())
@settings(deadline=None)
def test_a_job_has_the_same_nodes_and_rules_after_both_conversions(
    document: dict[str, Any],
) -> None:
    framework = KINDS[document["kind"]]
    job = read_job(document, framework)
    conversion = convert_document(document)
    train_job = write_and_read(conversion.job)
    again = convert_to_v1(train_job, {}).job
    assert read_job(write_job(again), framework) == again
    assert convert_document(write_job(again)).job == train_job
    assert (again.kind, again.total_replicas) == (job.kind, job.total_replicas)
    for name in ("ttl_seconds_after_finished", "active_deadline_seconds", "suspend"):
        assert getattr(again.run_policy, name) == getattr(job.run_policy, name)
    first, others = next(iter(again.replicas.values())), list(again.replicas.values())[1:]
    assert all(spec.template == first.template for spec in others)
    never = job.replicas[ReplicaType("Worker")].restart_policy is RestartPolicy.NEVER
    limit = job.run_policy.backoff_limit
    together = job.job_restart_policy if limit != 0 else None
    assert again.job_restart_policy == together
    if together is not None:
        assert again.run_policy.backoff_limit == limit
    elif never or limit == 0:
        assert first.restart_policy is RestartPolicy.NEVER
    else:
        assert again.run_policy.backoff_limit == limit
        assert first.restart_policy is RestartPolicy.ON_FAILURE
    leader = ReplicaId(next(iter(job.replicas)), 0)
    old = variables_of(job, framework, leader)
    new = variables_of(again, framework, ReplicaId(next(iter(again.replicas)), 0))
    changing = ("ADDR", "URI", "PORT", "ADDRESS", "ADDRS", "PET_NPROC_PER_NODE")
    ignored = {name for name in old if name.endswith(changing)}
    if any(finding.path == "spec.nprocPerNode" for finding in conversion.lost):
        ignored.add("WORLD_SIZE")  # it counts processes, of which torchrun chose the number
    assert {name: new[name] for name in old.keys() - ignored} == {
        name: old[name] for name in old.keys() - ignored
    }


# -- to v1 ----------------------------------------------------------------------------------------

TRAIN_JOB_TEXT = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  runtimeRef: {kind: TrainingRuntime, name: mine}
  trainer: {numNodes: 3, command: [COMMAND, train.py]}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: mine}
spec:
  mlPolicy: {numNodes: 1, POLICY: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template: {spec: {containers: [{name: node, image: "train:1"}]}}
"""


def convert_text(
    *changes: tuple[str, str], policy: str = "torch", command: str = "torchrun"
) -> Conversion:
    text = TRAIN_JOB_TEXT.replace("POLICY", policy).replace("COMMAND", command)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = read_manifest_file(text, "job.yaml")
    return convert_to_v1(read_train_job(file.job, file.runtimes), file.job)


@pytest.mark.parametrize(
    ("policy", "kind", "replicas"),
    [
        ("torch", "PyTorchJob", {"Master": 1, "Worker": 2}),
        ("jax", "JAXJob", {"Worker": 3}),
        ("xgboost", "XGBoostJob", {"Master": 1, "Worker": 2}),
    ],
)
def test_the_kind_of_v1_is_that_of_the_policy(
    policy: str, kind: str, replicas: dict[str, int]
) -> None:
    job = convert_text(policy=policy).job
    assert job.kind == kind
    assert {type: spec.replicas for type, spec in job.replicas.items()} == replicas
    assert {spec.restart_policy for spec in job.replicas.values()} == {RestartPolicy.NEVER}
    framework = find_job_framework(job)
    assert read_job(write_job(job), framework) == job


def test_containers_that_lose_their_variables_are_named() -> None:
    target = "{jobName: node, containerNames: [check]}"
    injected = ("torch: {}", f"torch: {{envInjection: {{targets: [{target}]}}}}")
    check = ("{containers", '{initContainers: [{name: check, image: "check:1"}], containers')
    messages = [finding.message for finding in convert_text(injected, check).lost]
    assert "envInjection cannot be expressed: check would get no PET_ variables" in messages


def test_what_v1_cannot_express_is_named() -> None:
    group = ("  mlPolicy", "  podGroupPolicy: {coscheduling: {}}\n  mlPolicy")
    together = (
        "      replicatedJobs",
        "      failurePolicy: {maxRestarts: 2, restartStrategy: BlockingRecreate}\n"
        "      replicatedJobs",
    )
    jobs = ("{labels: {", "{labels: {team: vision, ")
    network = (
        "      replicatedJobs",
        "      network: {subdomain: a, enableDNSHostnames: false}\n      replicatedJobs",
    )
    mentions = ('"train:1"', '"train:1", args: [digits-node-0-0.digits, $(JOB_COMPLETION_INDEX)]')
    conversion = convert_text(group, together, jobs, network, mentions, command="python")
    messages = "\n".join(finding.message for finding in conversion.lost)
    for part in (
        "podGroupPolicy cannot be expressed",
        "failurePolicy becomes danlu.dev/restart-policy",
        "failurePolicy.restartStrategy cannot be expressed",
        "network.subdomain cannot be expressed",
        "network cannot be expressed",
        "metadata of the Jobs of replicated jobs cannot be expressed",
        "mentions digits-node-0-0",
        "mentions JOB_COMPLETION_INDEX",
        "the job succeeds with its Master",
        "a PyTorchJob also sets MASTER_PORT, MASTER_ADDR, WORLD_SIZE, RANK",
    ):
        assert part in messages
    assert conversion.job.job_restart_policy == JobRestartPolicy(2)


def test_what_has_no_effect_here_is_written_again() -> None:
    text = TRAIN_JOB_TEXT.replace("POLICY", "torch").replace("COMMAND", "torchrun")
    group = {"coscheduling": {"scheduleTimeoutSeconds": 9}}
    network = {"enableDNSHostnames": False, "subdomain": "a"}
    failure = {"maxRestarts": 2, "restartStrategy": "BlockingRecreate"}
    text = text.replace("  mlPolicy", f"  podGroupPolicy: {json.dumps(group)}\n  mlPolicy")
    fields = f"network: {json.dumps(network)}\n      failurePolicy: {json.dumps(failure)}"
    text = text.replace("{labels: {", "{annotations: {a: b}, labels: {team: vision, ")
    job = read_text(text.replace("      replicatedJobs", f"      {fields}\n      replicatedJobs"))
    spec = write_train_job(job)[0]["spec"]
    template = spec["template"]["spec"]
    assert (spec["podGroupPolicy"], template["network"]) == (group, network)
    assert template["failurePolicy"] == failure
    metadata = template["replicatedJobs"][0]["template"]["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]) == ("vision", {"a": "b"})
    assert write_and_read(job) == job


def test_any_success_and_initializers_are_refused() -> None:
    policy = ("      replicatedJobs", "      successPolicy: {operator: Any}\n      replicatedJobs")
    stage = (
        "      - name: node",
        "      - name: model-initializer\n"
        "        template: {spec: {template: {spec: {containers:"
        " [{name: model-initializer, image: a}]}}}}\n"
        "      - name: node",
    )
    for change, message in (
        (policy, "successPolicy Any has no equivalent"),
        (stage, "model-initializer has no equivalent"),
    ):
        with pytest.raises(ManifestError) as caught:
            convert_text(change)
        assert message in caught.value.findings[0].message
