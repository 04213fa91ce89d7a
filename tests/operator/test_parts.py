"""The pure parts of the operator: what pods say, what was written, what is to be written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.types import ObjectMeta
from danlu.operator.gangs import min_resources
from danlu.operator.observing import observed_pod
from danlu.operator.telling import listed
from danlu.operator.types import PodObject
from danlu.operator.writing import difference
from danlu.operator.written import Written
from danlu.testing.kubernetes import VirtualClock
from danlu.training.manifest import read_job
from danlu.training.quantities import added
from danlu.training.registry import framework_of
from danlu.training.types import JobStatus, Phase, ReplicaRecord
from tests.training.manifests import manifest

PYTORCH = framework_of("PyTorchJob")
LABELS = {
    "training.kubeflow.org/job-name": "job",
    "training.kubeflow.org/operator-name": "pytorchjob-controller",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "1",
}


def pod(status: dict[str, Any], **metadata: Any) -> PodObject:
    document = {"metadata": {"uid": "u", "labels": LABELS, **metadata}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(document), type=PodObject)


def container(name: str = "pytorch", restarts: int = 0, **terminated: Any) -> dict[str, Any]:
    state = {"terminated": terminated} if terminated else {"running": {}}
    return {"name": name, "restartCount": restarts, "state": state}


# -- what pods say


def test_a_pods_end_is_that_of_the_frameworks_container() -> None:
    sidecar = container("istio", exitCode=0, reason="Completed")
    main = container(exitCode=137, reason="OOMKilled", message="too big")
    found = observed_pod(pod({"phase": "Failed", "containerStatuses": [sidecar, main]}), PYTORCH)
    assert found is not None
    assert (found.phase, found.exit_code) == (Phase.FAILED, 137)
    assert (found.reason, found.message, str(found.id)) == ("OOMKilled", "too big", "worker-1")


def test_a_pod_that_was_ended_as_a_whole_says_why() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "no memory"}
    found = observed_pod(pod(status), PYTORCH)
    assert found is not None
    assert (found.exit_code, found.reason, found.message) == (None, "Evicted", "no memory")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    found = observed_pod(pod({"phase": "Failed", "conditions": [condition]}), PYTORCH)
    assert found is not None
    assert found.reason == "PreemptionByScheduler"


def test_a_container_that_ended_in_a_running_pod_is_no_end() -> None:
    main = container(restarts=2, exitCode=1)
    found = observed_pod(pod({"phase": "Running", "containerStatuses": [main]}), PYTORCH)
    assert found is not None
    assert (found.phase, found.exit_code, found.restarts) == (Phase.RUNNING, None, 2)


def test_a_pod_on_a_machine_that_is_silent_is_not_taken_for_ended() -> None:
    found = observed_pod(pod({"phase": "Unknown"}), PYTORCH)
    assert found is not None
    assert found.phase is Phase.RUNNING


@pytest.mark.parametrize("index", ["", "x", "-1", "1.5"])
def test_a_pod_without_a_replicas_labels_is_none(index: str) -> None:
    labels = {**LABELS, "training.kubeflow.org/replica-index": index}
    assert observed_pod(pod({"phase": "Running"}, labels=labels), PYTORCH) is None


# -- what was written


def seen(version: str) -> ObjectMeta:
    return ObjectMeta(name="job", uid="u", resource_version=version)


def test_the_last_status_counts_until_the_cache_has_moved_past_what_it_replaced() -> None:
    written = Written(clock=VirtualClock())
    old, first, second = (
        JobStatus(),
        JobStatus(records={"worker-0": ReplicaRecord(restarts=1)}),
        JobStatus(records={}),
    )
    assert written.newest(seen("1"), old) == ("1", old)
    written.keep(seen("1"), over="1", version="2", status=first)
    assert written.newest(seen("1"), old) == ("2", first)
    written.keep(seen("1"), over="2", version="3", status=second)
    for behind in ("1", "2"):
        assert written.newest(seen(behind), old) == ("3", second)
    assert written.newest(seen("9"), old) == ("9", old)
    # From now on the cache is what counts.
    assert written.newest(seen("1"), old) == ("1", old)


def test_the_echo_of_a_write_is_known_once() -> None:
    written = Written(clock=VirtualClock())
    assert not written.echoed(seen("2"))
    written.keep(seen("1"), over="1", version="2", status=JobStatus())
    assert not written.echoed(seen("1"))
    assert written.echoed(seen("2"))
    assert not written.echoed(seen("2"))
    written.forget("u")
    assert len(written) == 0


# -- what is to be written

JSON = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=4) | st.lists(inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, word by word."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


@given(OBJECTS, OBJECTS)
def test_a_difference_merged_gives_the_new_value(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, difference(old, new)) == new


@given(OBJECTS)
def test_of_two_that_are_the_same_there_is_no_difference(value: dict[str, Any]) -> None:
    assert difference(value, value) == {}


def test_long_lists_are_told_in_short() -> None:
    assert listed("Created", "pod", ["a"]) == "Created pod: a"
    many = [f"p{index}" for index in range(1000)]
    assert listed("Created", "pod", many).endswith("p11 and 988 more")


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
    assert added(quantities) == sum


def test_what_is_no_quantity_is_not_added() -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        added(["much"])


def test_limits_stand_for_requests_that_are_not_there() -> None:
    document = manifest("PyTorchJob", Master=1, Worker=2)
    for type, resources in (
        ("Master", {"limits": {"cpu": "2", "nvidia.com/gpu": 1}}),
        ("Worker", {"requests": {"cpu": "1"}, "limits": {"cpu": "9"}}),
    ):
        template = document["spec"]["pytorchReplicaSpecs"][type]["template"]
        template["spec"]["containers"][0]["resources"] = resources
    job = read_job(document, PYTORCH)
    assert min_resources(job, PYTORCH, 3) == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert min_resources(job, PYTORCH, 1) == {"cpu": "2", "nvidia.com/gpu": "1"}
