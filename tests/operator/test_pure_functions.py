"""The pure parts of the operator: observing pods, patches, PodGroups, the status cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from danlu.errors import UsageError
from danlu.kube.core_v1 import Pod
from danlu.kube.types import Manifest, ObjectMeta
from danlu.operator.apply import summarize_names
from danlu.operator.builders import build_pod
from danlu.operator.decoding import observe_pod
from danlu.operator.gang_scheduling import (
    build_pod_group,
    relevant_priority_classes,
    sum_min_resources,
)
from danlu.operator.owned_objects import correction_patch
from danlu.operator.status import StatusCache, merge_patch_diff
from danlu.operator.types import OperatorSettings
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.types import (
    Dependency,
    Job,
    JobStatus,
    ReplicaId,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaType,
)
from danlu.util.quantity import sum_quantities
from tests.fakes.kubernetes import VirtualClock
from tests.training.manifests import manifest

PYTORCH = find_framework("PyTorchJob")
LABELS = {
    "training.kubeflow.org/job-name": "job",
    "training.kubeflow.org/operator-name": "pytorchjob-controller",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "1",
}


def pod(status: dict[str, Any], **metadata: Any) -> Pod:
    document = {"metadata": {"uid": "u", "labels": LABELS, **metadata}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


def container(name: str = "pytorch", restarts: int = 0, **terminated: Any) -> dict[str, Any]:
    state = {"terminated": terminated} if terminated else {"running": {}}
    return {"name": name, "restartCount": restarts, "state": state}


# -- what pods say


def test_a_pods_end_is_that_of_the_frameworks_container() -> None:
    sidecar = container("istio", exitCode=0, reason="Completed")
    main = container(exitCode=137, reason="OOMKilled", message="too big")
    result = observe_pod(pod({"phase": "Failed", "containerStatuses": [sidecar, main]}), PYTORCH)
    assert result is not None
    assert (result.phase, result.exit_code) == (ReplicaPhase.FAILED, 137)
    assert (result.reason, result.message, str(result.id)) == ("OOMKilled", "too big", "worker-1")


def test_the_reason_of_an_evicted_pod_is_the_reason_of_its_failure() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "no memory"}
    result = observe_pod(pod(status), PYTORCH)
    assert result is not None
    assert (result.exit_code, result.reason, result.message) == (None, "Evicted", "no memory")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    result = observe_pod(pod({"phase": "Failed", "conditions": [condition]}), PYTORCH)
    assert result is not None
    assert result.reason == "PreemptionByScheduler"


def test_a_terminated_container_in_a_running_pod_does_not_end_the_replica() -> None:
    main = container(restarts=2, exitCode=1)
    result = observe_pod(pod({"phase": "Running", "containerStatuses": [main]}), PYTORCH)
    assert result is not None
    assert (result.phase, result.exit_code, result.restarts) == (ReplicaPhase.RUNNING, None, 2)


def test_a_pod_in_phase_unknown_counts_as_running() -> None:
    result = observe_pod(pod({"phase": "Unknown"}), PYTORCH)
    assert result is not None
    assert result.phase is ReplicaPhase.RUNNING


@pytest.mark.parametrize("index", ["", "x", "-1", "1.5"])
def test_a_pod_without_a_replicas_labels_is_none(index: str) -> None:
    labels = {**LABELS, "training.kubeflow.org/replica-index": index}
    assert observe_pod(pod({"phase": "Running"}, labels=labels), PYTORCH) is None


# -- what was written


def make_metadata(version: str) -> ObjectMeta:
    return ObjectMeta(name="job", uid="u", resource_version=version)


def test_the_last_written_status_counts_until_the_cache_has_caught_up() -> None:
    content = StatusCache(clock=VirtualClock())
    old, first, second = (
        JobStatus(),
        JobStatus(records={"worker-0": ReplicaRecord(restarts=1)}),
        JobStatus(records={}),
    )
    assert content.latest(make_metadata("1"), old) == ("1", old)
    content.put(make_metadata("1"), over="1", version="2", status=first)
    assert content.latest(make_metadata("1"), old) == ("2", first)
    content.put(make_metadata("1"), over="2", version="3", status=second)
    for behind in ("1", "2"):
        assert content.latest(make_metadata(behind), old) == ("3", second)
    assert content.latest(make_metadata("9"), old) == ("9", old)
    # From now on the cache is what counts.
    assert content.latest(make_metadata("1"), old) == ("1", old)


def test_the_echo_of_a_write_is_known_once() -> None:
    content = StatusCache(clock=VirtualClock())
    assert not content.is_own_write(make_metadata("2"))
    content.put(make_metadata("1"), over="1", version="2", status=JobStatus())
    assert not content.is_own_write(make_metadata("1"))
    assert content.is_own_write(make_metadata("2"))
    assert not content.is_own_write(make_metadata("2"))
    content.forget("u")
    assert len(content) == 0


# -- patches

JSON = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=4) | st.lists(inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, word by word."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


@given(OBJECTS, OBJECTS)
def test_a_difference_merged_gives_the_new_value(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_merge_patch(old, merge_patch_diff(old, new)) == new


@given(OBJECTS)
def test_the_merge_patch_of_equal_values_is_empty(value: dict[str, Any]) -> None:
    assert merge_patch_diff(value, value) == {}


def test_long_lists_of_names_are_shortened() -> None:
    assert summarize_names("Created", "pod", ["a"]) == "Created pod: a"
    many = [f"p{index}" for index in range(1000)]
    assert summarize_names("Created", "pod", many).endswith("p11 and 988 more")


# -- gangs


@pytest.mark.parametrize(
    ("quantities", "sum"),
    [
        (["500m", "1"], "1500m"),
        (["0.5", "0.5"], "1"),
        (["1Gi", "512Mi"], str(1536 * 1024**2)),
        (["1G", "1e3"], "1000001000"),
        (["1n"], "1m"),
        ([2, "1"], "3"),
        ([], "0"),
    ],
)
def test_quantities_are_added_exactly(quantities: list[object], sum: str) -> None:
    assert sum_quantities(quantities) == sum


def test_an_invalid_quantity_is_not_added() -> None:
    with pytest.raises(UsageError, match="invalid quantity 'much'"):
        sum_quantities(["much"])


def test_missing_requests_default_to_limits() -> None:
    document = manifest("PyTorchJob", Master=1, Worker=2)
    for type, resources in (
        ("Master", {"limits": {"cpu": "2", "nvidia.com/gpu": 1}}),
        ("Worker", {"requests": {"cpu": "1"}, "limits": {"cpu": "9"}}),
    ):
        template = document["spec"]["pytorchReplicaSpecs"][type]["template"]
        template["spec"]["containers"][0]["resources"] = resources
    job = read_job(document, PYTORCH)
    assert sum_min_resources(job, PYTORCH, 3) == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert sum_min_resources(job, PYTORCH, 1) == {"cpu": "2", "nvidia.com/gpu": "1"}


def gang(members: int | None = None, **types: tuple[int, str | None, Mapping[str, object]]) -> Job:
    """A job of types by (replicas, priority class, requests)."""
    document = manifest("PyTorchJob", **{type: number for type, (number, _, _) in types.items()})
    for type, (_, priority, requests) in types.items():
        template = document["spec"]["pytorchReplicaSpecs"][type]["template"]
        if priority is not None:
            template["spec"]["priorityClassName"] = priority
        limits = {name: value for name, value in requests.items() if "/" in name}
        template["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": limits}
    if members is not None:
        policy = {"schedulingPolicy": {"minAvailable": members}}
        document["spec"].setdefault("runPolicy", {}).update(policy)
    return read_job(document, PYTORCH)


SMALL, LARGE = {"cpu": "1"}, {"cpu": "4", "nvidia.com/gpu": "1"}
VALUES = {"low": -10, "high": 1000, "higher": 2000}


@pytest.mark.parametrize(
    ("master", "worker", "members", "asked"),
    [
        # The higher class first, whatever the order of types.
        ("low", "high", 1, {"cpu": "4", "nvidia.com/gpu": "1"}),
        ("low", "high", 2, {"cpu": "8", "nvidia.com/gpu": "2"}),
        ("low", "high", 3, {"cpu": "9", "nvidia.com/gpu": "2"}),
        ("higher", "high", 1, {"cpu": "1"}),
        ("higher", "high", 2, {"cpu": "5", "nvidia.com/gpu": "1"}),
        # No class is priority 0.
        (None, "high", 1, {"cpu": "4", "nvidia.com/gpu": "1"}),
        ("low", None, 1, {"cpu": "4", "nvidia.com/gpu": "1"}),
        ("high", None, 1, {"cpu": "1"}),
        # So is a class that does not exist.
        ("missing", "high", 1, {"cpu": "4", "nvidia.com/gpu": "1"}),
        ("low", "missing", 1, {"cpu": "4", "nvidia.com/gpu": "1"}),
        # Types of one priority keep their order.
        ("high", "high", 1, {"cpu": "1"}),
        ("missing", None, 2, {"cpu": "5", "nvidia.com/gpu": "1"}),
        (None, None, 1, {"cpu": "1"}),
        # More members than replicas count the replicas.
        ("low", "high", 9, {"cpu": "9", "nvidia.com/gpu": "2"}),
        ("low", "high", 0, {}),
    ],
)
def test_minimal_resources_count_replicas_of_a_higher_priority_class_first(
    master: str | None, worker: str | None, members: int, asked: dict[str, str]
) -> None:
    job = gang(Master=(1, master, SMALL), Worker=(2, worker, LARGE))
    assert sum_min_resources(job, PYTORCH, members, VALUES) == asked


@pytest.mark.parametrize(
    ("job", "names"),
    [
        (gang(1, Master=(1, "low", SMALL), Worker=(2, "high", LARGE)), {"low", "high"}),
        (gang(1, Master=(1, None, SMALL), Worker=(2, "high", LARGE)), {"high"}),
        # All count, in any order.
        (gang(3, Master=(1, "low", SMALL), Worker=(2, "high", LARGE)), set()),
        (gang(None, Master=(1, "low", SMALL), Worker=(2, "high", LARGE)), set()),
        (gang(1, Worker=(2, "high", LARGE)), set()),
    ],
)
def test_priority_classes_are_read_only_if_they_decide(job: Job, names: set[str]) -> None:
    assert relevant_priority_classes(job, PYTORCH) == names


# -- corrections of what exists


@pytest.mark.parametrize(
    ("waits", "status", "members"),
    [("Worker", "Complete", ["Worker"]), ("Worker", "Ready", ["Master"]), ("", "", None)],
)
def test_replicas_that_run_at_other_times_are_no_members_of_the_gang(
    waits: str, status: Any, members: list[str] | None
) -> None:
    job = gang(Master=(1, None, SMALL), Worker=(2, None, LARGE))
    if waits:
        dependency = Dependency(ReplicaType("Master"), status)
        spec = replace(job.replicas[ReplicaType(waits)], depends_on=(dependency,))
        job = replace(job, replicas={**job.replicas, ReplicaType(waits): spec})
    settings = OperatorSettings(gang_scheduler="scheduler-plugins")
    group = build_pod_group(job, PYTORCH, settings=settings)
    assert group is not None
    numbers = {"Master": 1, "Worker": 2}
    found = [
        type
        for type in numbers
        if "scheduling.x-k8s.io/pod-group"
        in build_pod(job, PYTORCH, ReplicaId(ReplicaType(type), 0), settings=settings)["metadata"][
            "labels"
        ]
    ]
    assert found == (members or ["Master", "Worker"])
    assert group["spec"]["minMember"] == sum(numbers[type] for type in found)


def test_a_correction_patch_contains_only_wrong_fields_of_the_job() -> None:
    expected: Manifest = {
        "kind": "PodGroup",
        "metadata": {"name": "job", "annotations": {"a": "of the job"}},
        "spec": {"minMember": 3, "minResources": {"cpu": "3"}, "queue": "default"},
    }
    existing: Manifest = {
        "kind": "PodGroup",
        "metadata": {"name": "job", "annotations": {"a": "of an admin"}, "labels": {"b": "c"}},
        "spec": {
            "minMember": 2,
            "minResources": {"cpu": "3", "nvidia.com/gpu": "1"},
            "queue": "of a webhook",
            "priorityClassName": "of an admin",
            "topologySpreadConstraints": [],
        },
        "status": {"phase": "Running"},
    }
    assert correction_patch(existing, expected, {}) == {
        "spec": {"minMember": 3, "minResources": {"nvidia.com/gpu": None}}
    }


def test_a_field_the_job_no_longer_sets_is_removed_unless_changed_by_others() -> None:
    previous: Manifest = {"kind": "PodGroup", "spec": {"minMember": 2, "priorityClassName": "high"}}
    expected: Manifest = {"kind": "PodGroup", "spec": {"minMember": 2}}
    for value, changes in (
        ("high", {"spec": {"priorityClassName": None}}),
        ("of an admin", {}),
    ):
        existing: Manifest = {
            "kind": "PodGroup",
            "spec": {"minMember": 2, "priorityClassName": value},
        }
        assert correction_patch(existing, expected, previous) == changes


def test_files_that_a_job_no_longer_has_are_removed_from_its_config_map() -> None:
    existing: Manifest = {"kind": "ConfigMap", "data": {"hostfile": "a", "old.sh": "b"}}
    expected: Manifest = {"kind": "ConfigMap", "data": {"hostfile": "a"}}
    assert correction_patch(existing, expected, {}) == {"data": {"old.sh": None}}


def test_defaults_of_the_server_in_an_autoscaler_are_not_corrected() -> None:
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}
    spec = {"maxReplicas": 3, "metrics": [metric]}
    expected: Manifest = {"kind": "HorizontalPodAutoscaler", "spec": spec}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    existing: Manifest = {
        "kind": "HorizontalPodAutoscaler",
        "spec": {**spec, "minReplicas": 1, "behavior": behavior},
    }
    assert correction_patch(existing, expected, {}) == {}


@given(OBJECTS, OBJECTS, OBJECTS)
def test_a_corrected_object_needs_no_patch(
    there: dict[str, Any], wanted: dict[str, Any], previous: dict[str, Any]
) -> None:
    document = {"kind": "Other", "spec": wanted}
    before = {"kind": "Other", "spec": previous}
    corrected = apply_merge_patch(
        {"spec": there}, correction_patch({"spec": there}, document, before)
    )
    assert correction_patch(corrected, document, {}) == {}
