"""Scaling, completion, duplicate attempts and unknown replicas."""

from __future__ import annotations

from msgspec.structs import replace

from danlu.training.types import (
    CleanPodPolicy,
    ElasticPolicy,
    ReplicaPhase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import BEGIN, JobSimulation, job

WORKER = ReplicaType("Worker")
ON_FAILURE = RestartPolicy.ON_FAILURE


def workers(number: int, policy: RestartPolicy = RestartPolicy.NEVER) -> JobSimulation:
    return JobSimulation(job("JAXJob", policy, Worker=number)).start()


# -- scaling


def test_scaling_up_creates_replicas() -> None:
    stage = workers(1)
    stage.change_spec(Worker=3)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]


def test_scaling_down_deletes_the_highest_indexes() -> None:
    stage = workers(3)
    stage.change_spec(Worker=1)
    stage.settle()
    assert stage.names() == ["worker-0"]
    assert stage.status.replica_statuses[WORKER].active == 1


def test_failure_of_a_replica_scaled_away_does_not_count() -> None:
    """Kubeflow deletes it but counts it and restarts the job."""
    stage = workers(3)
    stage.end("worker-2", 1)
    stage.change_spec(Worker=2)
    stage.settle()
    assert stage.state() == "Running"
    assert stage.status.replica_statuses[WORKER].failed == 0
    assert stage.status.first_failure is None


def test_scaling_down_and_up_is_not_a_restart() -> None:
    stage = workers(3)
    stage.change_spec(Worker=1)
    stage.settle()
    stage.change_spec(Worker=3)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]
    assert stage.record("worker-2").restarts == 0
    assert [action.attempt for action in stage.created if str(action.replica) == "worker-2"] == [
        0,
        1,
    ]


def test_replica_lost_before_scaling_down_is_not_a_restart() -> None:
    stage = workers(2)
    stage.vanish("worker-1")
    stage.change_spec(Worker=1)
    stage.settle()
    stage.change_spec(Worker=2)
    stage.settle()
    assert stage.record("worker-1").restarts == 0


def test_restarts_of_replicas_scaled_away_count_towards_the_backoff_limit() -> None:
    run = RunPolicy(backoff_limit=1)
    stage = JobSimulation(job("JAXJob", ON_FAILURE, Worker=2, run=run)).start()
    stage.end("worker-1", 1)
    stage.settle()
    stage.change_spec(Worker=1)
    stage.settle()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_replica_that_succeeded_before_scaling_down_is_completed() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.change_spec(Worker=1)
    stage.settle()
    assert stage.names() == ["worker-0"]
    stage.change_spec(Worker=2)
    stage.settle()
    assert stage.names() == ["worker-0"]
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_job_succeeds_if_all_replicas_left_after_scaling_down_succeeded() -> None:
    stage = workers(3)
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    stage.change_spec(Worker=2)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_elastic_job_keeps_its_bounds() -> None:
    elastic = ElasticPolicy(min_replicas=2, max_replicas=3)
    stage = JobSimulation(job("PyTorchJob", ON_FAILURE, Worker=5, elastic=elastic)).start()
    assert len(stage.names()) == 3
    stage.change_spec(Worker=1)
    stage.settle()
    assert len(stage.names()) == 2


def test_elastic_bounds_apply_to_workers_only() -> None:
    elastic = ElasticPolicy(min_replicas=2, max_replicas=3)
    stage = JobSimulation(
        job("PyTorchJob", ON_FAILURE, Master=1, Worker=2, elastic=elastic)
    ).start()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]


# -- completed replicas


def test_completed_replica_is_not_recreated() -> None:
    """Kubeflow recreates it once its pod is garbage collected (#1997, #2454)."""
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.settle()
    stage.vanish("worker-1")
    stage.wait(60)
    stage.settle()
    assert stage.names() == ["worker-0"]
    assert stage.record("worker-1").exit_code == 0
    assert stage.status.replica_statuses[WORKER].succeeded == 1
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_permanently_failed_replica_is_not_recreated() -> None:
    options = {"enableDynamicWorker": True}
    stage = JobSimulation(job("TFJob", Worker=3, options=options)).start()
    stage.end("worker-2", 1)
    stage.settle()
    assert stage.state() == "Running"
    stage.vanish("worker-2")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    assert stage.status.replica_statuses[ReplicaType("Worker")].failed == 1


def test_second_attempt_of_a_completed_replica_is_deleted() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.settle()
    uid = stage.add("worker-1")
    stage.settle()
    assert uid not in stage.attempts
    assert stage.status.replica_statuses[WORKER].succeeded == 1


def test_externally_recreated_completed_replica_is_deleted() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.settle()
    stage.vanish("worker-1")
    stage.add("worker-1")
    stage.settle()
    assert stage.names() == ["worker-0"]
    assert stage.record("worker-1").restarts == 0


# -- duplicate attempts


def test_known_attempt_is_kept() -> None:
    stage = workers(1)
    known = stage.attempt("worker-0").uid
    stage.add("worker-0", started=BEGIN)
    stage.settle()
    assert list(stage.attempts) == [known]
    assert stage.record("worker-0").restarts == 0


def test_oldest_unknown_attempt_is_kept() -> None:
    stage = JobSimulation(job("JAXJob", Worker=1))
    stage.wait(5)
    stage.add("worker-0", started=stage.now)
    first = stage.add("worker-0", started=BEGIN)
    stage.settle()
    assert list(stage.attempts) == [first]


def test_running_attempt_is_preferred_to_a_failed_attempt() -> None:
    stage = JobSimulation(job("JAXJob", Worker=1))
    stage.add("worker-0", ReplicaPhase.FAILED, exit_code=1, started=BEGIN)
    running = stage.add("worker-0", ReplicaPhase.RUNNING)
    stage.settle()
    assert list(stage.attempts) == [running]
    assert stage.state() == "Running"


def test_pending_attempt_is_preferred_to_a_terminating_attempt() -> None:
    stage = JobSimulation(job("JAXJob", Worker=1))
    stage.add("worker-0", deleting=True, started=BEGIN)
    stays = stage.add("worker-0", ReplicaPhase.PENDING)
    stage.write()
    assert stage.record("worker-0").current == stays


def test_replica_with_several_attempts_counts_once() -> None:
    stage = workers(1)
    stage.add("worker-0")
    stage.add("worker-0", ReplicaPhase.FAILED, exit_code=1)
    stage.write()
    status = stage.status.replica_statuses[WORKER]
    assert (status.active, status.failed) == (1, 0)


def test_abandoned_attempt_is_not_adopted() -> None:
    stage = workers(1)
    known = stage.attempt("worker-0").uid
    stage.add("worker-0")
    stage.write()  # the second will be deleted, but the first disappears before that
    del stage.attempts[known]
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.record("worker-0").restarts == 1
    assert [action.attempt for action in stage.created] == [0, 1]


def test_replaced_attempt_is_not_adopted() -> None:
    """A stale list shows it again."""
    stage = workers(1)
    old = stage.attempt("worker-0")
    stage.vanish("worker-0")
    stage.add("worker-0")
    stage.settle()
    stage.vanish("worker-0")
    stage.attempts[old.uid] = old
    stage.settle()
    assert stage.record("worker-0").restarts == 2
    assert stage.attempts == {}


# -- objects that are not ours


def test_replica_of_an_unknown_type_is_ignored() -> None:
    """Kubeflow does not count it either, but mishandles its labels (#1976)."""
    stage = workers(1)
    uid = stage.add("stranger-0", ReplicaPhase.FAILED, exit_code=1)
    stage.settle()
    assert uid in stage.attempts
    assert stage.state() == "Running"
    assert set(stage.status.replica_statuses) == {WORKER}


def test_replica_with_an_invalid_index_is_ignored() -> None:
    """Kubeflow uses it as an array index."""
    stage = workers(1)
    uid = stage.add("worker-0")
    odd = replace(stage.attempts[uid].id, index=-1)
    stage.attempts[uid] = replace(stage.attempts[uid], id=odd)
    stage.settle()
    assert uid in stage.attempts


def test_replicas_of_an_unknown_type_are_cleaned_up_with_the_job() -> None:
    stage = JobSimulation(
        job("JAXJob", Worker=1, run=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL))
    )
    stage.start()
    stage.add("stranger-0")
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.attempts == {}


def test_replicas_of_a_removed_type_are_deleted() -> None:
    stage = JobSimulation(job("TFJob", PS=1, Worker=1)).start()
    specs = {WORKER: stage.job.replicas[WORKER]}
    stage.job = replace(stage.job, replicas=specs)
    stage.settle()
    assert stage.names() == ["worker-0"]


def test_job_managed_by_another_controller_is_ignored() -> None:
    run = RunPolicy(managed_by="kueue.x-k8s.io/multikueue", suspend=True)
    stage = JobSimulation(job("JAXJob", Worker=1, run=run))
    stage.add("worker-0", ReplicaPhase.FAILED, exit_code=1)
    decision = stage.decide()
    assert decision.actions == ()
    assert decision.status == stage.status
    assert decision.requeue_after is None


def test_job_managed_by_the_training_operator_is_reconciled() -> None:
    run = RunPolicy(managed_by="kubeflow.org/training-operator")
    assert JobSimulation(job("JAXJob", Worker=1, run=run)).decide().actions


def test_terminating_job_is_ignored() -> None:
    stage = workers(2)
    stage.job = replace(stage.job, deleting=True)
    stage.vanish("worker-0")
    decision = stage.decide()
    assert decision.actions == ()
    assert decision.status == stage.status
