"""Jobs and their status round-trip through manifests."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.training.document import ManifestError, read_manifest_file
from danlu.training.manifest import read_job, read_status, status_to_manifest, write_job
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    ElasticPolicy,
    FirstFailure,
    Job,
    JobCondition,
    JobRestartPolicy,
    JobStatus,
    ReplicaId,
    ReplicaRecord,
    ReplicaStatus,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
    SchedulingPolicy,
)
from danlu.util.yaml_with_lines import dump_yaml
from tests.training.manifests import KINDS, SIZES, framework, manifest

WORDS = st.text("abcxyz-. _:#'\"1é\n", max_size=8)
SMALL = st.integers(0, 9)
NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
TEXTS = st.dictionaries(st.text("abc/.", min_size=1, max_size=5), WORDS, max_size=2)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))

SCHEDULING = st.builds(
    SchedulingPolicy,
    min_available=st.none() | SMALL,
    queue=st.sampled_from(["", "a", "null", "1"]),
    min_resources=st.sampled_from([{}, {"cpu": 2, "memory": "4Gi"}]),
)
RUN = st.builds(
    RunPolicy,
    clean_pod_policy=st.sampled_from(CleanPodPolicy),
    ttl_seconds_after_finished=st.none() | SMALL,
    active_deadline_seconds=st.none() | SMALL,
    backoff_limit=st.none() | SMALL,
    scheduling_policy=st.none() | SCHEDULING,
    suspend=st.booleans(),
    managed_by=st.sampled_from(["", "kueue.x-k8s.io/multikueue"]),
)
ELASTIC = st.builds(
    ElasticPolicy,
    min_replicas=st.integers(1, 2),
    max_replicas=st.integers(2, 5),
    rdzv_backend=st.sampled_from(["", "c10d", "etcd-v2"]),
    rdzv_port=st.none() | st.integers(1, 65535),
    rdzv_id=WORDS,
    rdzv_conf=st.sampled_from([(), ({"key": "a", "value": "1"},)]),
    standalone=st.booleans(),
    max_restarts=st.none() | SMALL,
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Generate jobs of every kind, as the parser returns them."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    it = framework(kind)
    job = read_job(manifest(kind), it)
    replicas = {
        type: msgspec.structs.replace(
            spec,
            replicas=draw(st.integers(1, 5)) if type == "Worker" else spec.replicas,
            restart_policy=draw(st.sampled_from(RestartPolicy)),
            template=draw(templates(spec.template)),
        )
        for type, spec in job.replicas.items()
    }
    elastic = draw(ELASTIC) if "elasticPolicy" in it.spec_options else None
    return msgspec.structs.replace(
        job,
        name=draw(NAMES),
        namespace=draw(st.sampled_from(["default", "team-a"])),
        uid=draw(st.sampled_from(["", "1-2"])),
        labels=draw(st.sampled_from([{}, {"a/b": "c"}, {"on": ""}])),
        annotations=draw(TEXTS),
        replicas=replicas,
        run_policy=draw(RUN),
        success_policy=draw(st.sampled_from(["", "AllWorkers"])) if kind == "TFJob" else "",
        elastic_policy=elastic,
        options=draw(st.sampled_from(OPTIONS[kind])),
    )


OPTIONS: dict[str, list[dict[str, Any]]] = {
    **{kind: [{}] for kind in KINDS},
    "PyTorchJob": [{}, {"nprocPerNode": "2"}],
    "TFJob": [{}, {"enableDynamicWorker": True}, {"enableDynamicWorker": False}],
    "MPIJob": [{}, {"slotsPerWorker": 2, "mainContainer": "mpi"}],
    "MXJob": [{}, {"jobMode": "MXTune"}],
}


@st.composite
def templates(draw: st.DrawFn, template: Any) -> Any:
    container = {
        **template["spec"]["containers"][0],
        "args": draw(st.lists(WORDS, max_size=3)),
        "env": [{"name": "A", "value": draw(WORDS)}],
    }
    return {"spec": {**template["spec"], "containers": [container]}}


def statuses() -> st.SearchStrategy[JobStatus]:
    conditions = st.builds(
        JobCondition,
        type=st.sampled_from(ConditionType),
        status=st.sampled_from(["True", "False"]),
        reason=WORDS,
        last_update_time=st.none() | TIMES,
    )
    replica = ReplicaId(ReplicaType("Worker"), 1)
    return st.builds(
        JobStatus,
        conditions=st.lists(conditions, max_size=3).map(tuple),
        replica_statuses=st.dictionaries(
            st.sampled_from([ReplicaType("Worker"), ReplicaType("PS")]),
            st.builds(ReplicaStatus, active=SMALL, succeeded=SMALL, failed=SMALL),
        ),
        start_time=st.none() | TIMES,
        completion_time=st.none() | TIMES,
        records=st.dictionaries(
            st.just("worker-1"), st.builds(ReplicaRecord, restarts=SMALL, retry_at=TIMES)
        ),
        first_failure=st.none() | st.builds(FirstFailure, replica=st.just(replica), time=TIMES),
    )


@settings(deadline=None, max_examples=60)
@given(jobs(), statuses())
def test_job_round_trips(job: Job, status: JobStatus) -> None:
    job = msgspec.structs.replace(job, status=status)
    assert read_job(write_job(job), framework(job.kind)) == job


@settings(deadline=None, max_examples=60)
@given(jobs())
def test_job_round_trips_through_yaml(job: Job) -> None:
    job = msgspec.structs.replace(job, uid="")  # the uid of a file is ignored
    document = read_manifest_file(dump_yaml(write_job(job)), "job.yaml")
    assert read_job(document.job, framework(job.kind)) == job


@settings(deadline=None, max_examples=60)
@given(statuses())
def test_status_round_trips(status: JobStatus) -> None:
    assert read_status(status_to_manifest(status)) == status


def test_job_is_rendered_in_the_form_of_kubectl() -> None:
    job = read_job(manifest("PyTorchJob", Worker=2), framework("PyTorchJob"))
    assert dump_yaml(write_job(job)) == (
        "apiVersion: kubeflow.org/v1\n"
        "kind: PyTorchJob\n"
        "metadata:\n"
        "  name: job\n"
        "spec:\n"
        "  pytorchReplicaSpecs:\n"
        "    Worker:\n"
        "      replicas: 2\n"
        "      restartPolicy: OnFailure\n"
        "      template:\n"
        "        spec:\n"
        "          containers:\n"
        "          - name: pytorch\n"
        "            image: example/train:1\n"
        "            command:\n"
        "            - train\n"
        "            ports:\n"
        "            - name: pytorchjob-port\n"
        "              containerPort: 23456\n"
    )


def test_status_is_rendered_with_the_fields_of_kubeflow() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    status = JobStatus(
        conditions=(
            JobCondition(
                ConditionType.RUNNING, "True", "PyTorchJobRunning", last_transition_time=moment
            ),
        ),
        replica_statuses={ReplicaType("Worker"): ReplicaStatus(active=2)},
        start_time=moment,
    )
    assert status_to_manifest(status) == {
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "reason": "PyTorchJobRunning",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
        "replicaStatuses": {"Worker": {"active": 2}},
        "startTime": "2026-01-02T03:04:05Z",
    }


def test_status_of_the_go_operator_is_parsed() -> None:
    status = read_status(
        {
            "conditions": [{"type": "Created", "status": "True", "reason": None}],
            "completionTime": None,
            "replicaStatuses": {"Worker": {"active": 1, "labelSelector": {"matchLabels": {}}}},
            "startTime": "2026-01-02T03:04:05Z",
        }
    )
    assert status.conditions == (JobCondition(ConditionType.CREATED, "True"),)
    assert status.replica_statuses == {"Worker": ReplicaStatus(active=1)}


def test_invalid_status_is_an_error_with_its_path() -> None:
    with pytest.raises(ManifestError, match=r"startTime"):
        read_status({"startTime": "yesterday"})


def test_job_from_a_server_has_uid_and_deletion_state() -> None:
    document = manifest()
    document["metadata"] |= {"uid": "7", "deletionTimestamp": "2026-01-02T03:04:05Z"}
    job = read_job(document, framework("PyTorchJob"))
    assert (job.uid, job.deleting) == ("7", True)


def test_job_restart_policy_is_an_annotation() -> None:
    document = manifest("PyTorchJob", Worker=2)
    document["metadata"]["annotations"] = {"danlu.dev/restart-policy": "Job"}
    document["spec"]["runPolicy"] = {"backoffLimit": 3}
    job = read_job(document, framework("PyTorchJob"))
    assert job.job_restart_policy == JobRestartPolicy(3)
    assert read_job(write_job(job), framework("PyTorchJob")) == job


def test_job_restart_policy_is_written_with_its_maximum() -> None:
    job = read_job(manifest("PyTorchJob", Worker=2), framework("PyTorchJob"))
    assert job.job_restart_policy is None
    document = write_job(msgspec.structs.replace(job, job_restart_policy=JobRestartPolicy(5)))
    assert document["metadata"]["annotations"] == {"danlu.dev/restart-policy": "Job"}
    assert document["spec"]["runPolicy"]["backoffLimit"] == 5


def test_unknown_job_restart_policy_is_refused() -> None:
    document = manifest("PyTorchJob", Worker=2)
    document["metadata"]["annotations"] = {"danlu.dev/restart-policy": "OnFailure"}
    with pytest.raises(ManifestError) as raised:
        read_job(document, framework("PyTorchJob"))
    (detail,) = raised.value.details
    assert "metadata.annotations[danlu.dev/restart-policy]: cannot be 'OnFailure'" in detail


@pytest.mark.parametrize("kind", SIZES)
def test_job_round_trips_through_json_and_pickle(kind: str) -> None:
    job = read_job(manifest(kind), framework(kind))
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
    assert pickle.loads(pickle.dumps(job)) == job


def test_manifest_error_keeps_its_findings() -> None:
    document = manifest()
    document["metadata"]["name"] = "A"
    document["spec"]["runPolicy"] = {"suspend": 1}
    with pytest.raises(ManifestError) as caught:
        read_job(document, framework("PyTorchJob"))
    assert [finding.path for finding in caught.value.findings] == [
        "metadata.name",
        "spec.runPolicy.suspend",
    ]
    assert len(caught.value.details) == 2
    assert caught.value.exit_code == 2
