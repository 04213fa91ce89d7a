"""Scale, completion, duplicates, strangers: which replicas there are, and are not."""

from __future__ import annotations

from msgspec.structs import replace

from danlu.training.types import (
    CleanPodPolicy,
    ElasticPolicy,
    Phase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.stage import BEGIN, Stage, job

WORKER = ReplicaType("Worker")
ON_FAILURE = RestartPolicy.ON_FAILURE


def workers(number: int, policy: RestartPolicy = RestartPolicy.NEVER) -> Stage:
    return Stage(job("JAXJob", policy, Worker=number)).start()


# -- more and fewer


def test_more_replicas_are_made() -> None:
    stage = workers(1)
    stage.ask(Worker=3)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]


def test_indexes_beyond_the_number_are_removed() -> None:
    stage = workers(3)
    stage.ask(Worker=1)
    stage.settle()
    assert stage.names() == ["worker-0"]
    assert stage.status.replica_statuses[WORKER].active == 1


def test_a_failed_replica_beyond_the_number_fails_nothing() -> None:
    """Kubeflow removes it, counts it, and restarts the job for it."""
    stage = workers(3)
    stage.end("worker-2", 1)
    stage.ask(Worker=2)
    stage.settle()
    assert stage.state() == "Running"
    assert stage.status.replica_statuses[WORKER].failed == 0
    assert stage.status.first_failure is None


def test_being_scaled_down_and_up_again_is_no_restart() -> None:
    stage = workers(3)
    stage.ask(Worker=1)
    stage.settle()
    stage.ask(Worker=3)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]
    assert stage.record("worker-2").restarts == 0
    assert [one.attempt for one in stage.made if str(one.replica) == "worker-2"] == [0, 1]


def test_one_that_is_gone_when_the_job_is_made_smaller_is_not_missed() -> None:
    stage = workers(2)
    stage.vanish("worker-1")
    stage.ask(Worker=1)
    stage.settle()
    stage.ask(Worker=2)
    stage.settle()
    assert stage.record("worker-1").restarts == 0


def test_restarts_of_replicas_that_are_no_more_count_towards_the_limit() -> None:
    run = RunPolicy(backoff_limit=1)
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2, run=run)).start()
    stage.end("worker-1", 1)
    stage.settle()
    stage.ask(Worker=1)
    stage.settle()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_what_succeeded_before_it_had_to_go_is_completed() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.ask(Worker=1)
    stage.settle()
    assert stage.names() == ["worker-0"]
    stage.ask(Worker=2)
    stage.settle()
    assert stage.names() == ["worker-0"]
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_fewer_replicas_that_all_succeeded_are_success() -> None:
    stage = workers(3)
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    stage.ask(Worker=2)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_an_elastic_job_keeps_its_bounds() -> None:
    elastic = ElasticPolicy(min_replicas=2, max_replicas=3)
    stage = Stage(job("PyTorchJob", ON_FAILURE, Worker=5, elastic=elastic)).start()
    assert len(stage.names()) == 3
    stage.ask(Worker=1)
    stage.settle()
    assert len(stage.names()) == 2


def test_the_bounds_are_those_of_workers_alone() -> None:
    elastic = ElasticPolicy(min_replicas=2, max_replicas=3)
    stage = Stage(job("PyTorchJob", ON_FAILURE, Master=1, Worker=2, elastic=elastic)).start()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]


# -- what is completed stays


def test_a_completed_replica_is_not_made_again_when_nothing_is_left_of_it() -> None:
    """Kubeflow makes it again once its pod is garbage (#1997, #2454)."""
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


def test_a_replica_that_failed_for_good_is_not_made_again() -> None:
    options = {"enableDynamicWorker": True}
    stage = Stage(job("TFJob", Worker=3, options=options)).start()
    stage.end("worker-2", 1)
    stage.settle()
    assert stage.state() == "Running"
    stage.vanish("worker-2")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    assert stage.status.replica_statuses[ReplicaType("Worker")].failed == 1


def test_another_attempt_at_a_completed_replica_is_removed() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.settle()
    uid = stage.add("worker-1")
    stage.settle()
    assert uid not in stage.there
    assert stage.status.replica_statuses[WORKER].succeeded == 1


def test_nobody_can_make_a_completed_replica_again() -> None:
    stage = workers(2)
    stage.end("worker-1", 0)
    stage.settle()
    stage.vanish("worker-1")
    stage.add("worker-1")
    stage.settle()
    assert stage.names() == ["worker-0"]
    assert stage.record("worker-1").restarts == 0


# -- more than one attempt


def test_of_two_attempts_the_known_one_stays() -> None:
    stage = workers(1)
    known = stage.attempt("worker-0").uid
    stage.add("worker-0", started=BEGIN)
    stage.settle()
    assert list(stage.there) == [known]
    assert stage.record("worker-0").restarts == 0


def test_of_two_unknown_attempts_the_one_that_began_first_stays() -> None:
    stage = Stage(job("JAXJob", Worker=1))
    stage.wait(5)
    stage.add("worker-0", started=stage.now)
    first = stage.add("worker-0", started=BEGIN)
    stage.settle()
    assert list(stage.there) == [first]


def test_of_two_unknown_attempts_one_that_runs_is_better_than_one_that_failed() -> None:
    stage = Stage(job("JAXJob", Worker=1))
    stage.add("worker-0", Phase.FAILED, exit_code=1, started=BEGIN)
    running = stage.add("worker-0", Phase.RUNNING)
    stage.settle()
    assert list(stage.there) == [running]
    assert stage.state() == "Running"


def test_of_two_attempts_one_that_is_being_ended_is_the_worse() -> None:
    stage = Stage(job("JAXJob", Worker=1))
    stage.add("worker-0", deleting=True, started=BEGIN)
    stays = stage.add("worker-0", Phase.PENDING)
    stage.write()
    assert stage.record("worker-0").current == stays


def test_a_replica_counts_once_however_many_attempts_there_are() -> None:
    stage = workers(1)
    stage.add("worker-0")
    stage.add("worker-0", Phase.FAILED, exit_code=1)
    stage.write()
    status = stage.status.replica_statuses[WORKER]
    assert (status.active, status.failed) == (1, 0)


def test_an_attempt_that_was_given_up_never_stands_again() -> None:
    stage = workers(1)
    known = stage.attempt("worker-0").uid
    stage.add("worker-0")
    stage.write()  # the second is to go, and nobody removes it before the first is gone too
    del stage.there[known]
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.record("worker-0").restarts == 1
    assert [one.attempt for one in stage.made] == [0, 1]


def test_an_attempt_that_was_replaced_never_stands_again() -> None:
    """A list that is older than the one before shows it once more."""
    stage = workers(1)
    old = stage.attempt("worker-0")
    stage.vanish("worker-0")
    stage.add("worker-0")
    stage.settle()
    stage.vanish("worker-0")
    stage.there[old.uid] = old
    stage.settle()
    assert stage.record("worker-0").restarts == 2
    assert stage.there == {}


# -- what is not ours


def test_replicas_of_an_unknown_type_are_left_alone() -> None:
    """Kubeflow does not count them either, but is confused by their labels (#1976)."""
    stage = workers(1)
    uid = stage.add("stranger-0", Phase.FAILED, exit_code=1)
    stage.settle()
    assert uid in stage.there
    assert stage.state() == "Running"
    assert set(stage.status.replica_statuses) == {WORKER}


def test_an_index_that_cannot_be_is_left_alone() -> None:
    """Kubeflow's operator indexes an array with it."""
    stage = workers(1)
    uid = stage.add("worker-0")
    odd = replace(stage.there[uid].id, index=-1)
    stage.there[uid] = replace(stage.there[uid], id=odd)
    stage.settle()
    assert uid in stage.there


def test_strangers_go_with_the_job() -> None:
    stage = Stage(job("JAXJob", Worker=1, run=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL)))
    stage.start()
    stage.add("stranger-0")
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.there == {}


def test_replicas_of_a_type_that_the_job_has_no_more_are_removed() -> None:
    stage = Stage(job("TFJob", PS=1, Worker=1)).start()
    specs = {WORKER: stage.job.replicas[WORKER]}
    stage.job = replace(stage.job, replicas=specs)
    stage.settle()
    assert stage.names() == ["worker-0"]


def test_a_job_that_somebody_else_manages_is_left_alone() -> None:
    run = RunPolicy(managed_by="kueue.x-k8s.io/multikueue", suspend=True)
    stage = Stage(job("JAXJob", Worker=1, run=run))
    stage.add("worker-0", Phase.FAILED, exit_code=1)
    decision = stage.decide()
    assert decision.actions == ()
    assert decision.status == stage.status
    assert decision.requeue_after is None


def test_a_job_that_names_this_manager_is_ours() -> None:
    run = RunPolicy(managed_by="kubeflow.org/training-operator")
    assert Stage(job("JAXJob", Worker=1, run=run)).decide().actions


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    stage = workers(2)
    stage.job = replace(stage.job, deleting=True)
    stage.vanish("worker-0")
    decision = stage.decide()
    assert decision.actions == ()
    assert decision.status == stage.status
