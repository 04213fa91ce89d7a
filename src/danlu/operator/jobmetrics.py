"""What jobs count: Kubeflow's metrics, each once a job whoever restarts in between."""

from __future__ import annotations

from danlu.kube.metrics import Metrics
from danlu.training.framework import Framework
from danlu.training.types import ConditionType, JobStatus

__all__ = ["JobMetrics"]

_CONDITIONS = {
    "created": ConditionType.CREATED,
    "successful": ConditionType.SUCCEEDED,
    "failed": ConditionType.FAILED,
}


class JobMetrics:
    """``training_operator_jobs_{created,deleted,successful,failed,restarted}_total``.

    Counted by what is written into a job's status, so an operator that is restarted does not
    count its jobs anew (as Kubeflow's does). ``danlu_job_seconds`` are from start to end.
    """

    def __init__(self, metrics: Metrics) -> None:
        words = ("created", "deleted", "successful", "failed", "restarted")
        self._counters = {
            word: metrics.counter(
                f"training_operator_jobs_{word}_total",
                f"Jobs {word}",
                "job_namespace",
                "framework",
            )
            for word in words
        }
        self._seconds = metrics.histogram(
            "danlu_job_seconds",
            "Time from a job's start to its end",
            "framework",
            bounds=(1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600),
        )

    def written(
        self, namespace: str, framework: Framework, *, old: JobStatus, new: JobStatus
    ) -> None:
        """A job's status was written."""
        for word, condition in _CONDITIONS.items():
            if new.has(condition) and not old.has(condition):
                self._add(word, namespace, framework)
        restarts = _restarts(new) - _restarts(old)
        if restarts > 0:
            self._add("restarted", namespace, framework, restarts)
        if new.finished and not old.finished and new.start_time and new.completion_time:
            seconds = (new.completion_time - new.start_time).total_seconds()
            self._seconds.observe(seconds, framework=framework.name)

    def deleted(self, namespace: str, framework: Framework) -> None:
        """A job is no more."""
        self._add("deleted", namespace, framework)

    def _add(self, word: str, namespace: str, framework: Framework, number: int = 1) -> None:
        labels = {"job_namespace": namespace, "framework": framework.name}
        self._counters[word].add(number, **labels)


def _restarts(status: JobStatus) -> int:
    return sum(record.restarts for record in status.records.values())
