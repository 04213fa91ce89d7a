"""The HorizontalPodAutoscaler of an elastic job that has metrics to be scaled by."""

from __future__ import annotations

from danlu.kube.resources import Resource
from danlu.kube.types import Document
from danlu.operator.children import owned
from danlu.training.document import API_VERSION
from danlu.training.types import Job

__all__ = ["AUTOSCALERS", "autoscaler"]

AUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", Document
)


def autoscaler(job: Job) -> Document | None:
    """What scales the workers between the bounds of ``elasticPolicy`` (pytorch/hpa.go)."""
    policy = job.elastic_policy
    if policy is None or not policy.metrics:
        return None
    target = {"apiVersion": API_VERSION, "kind": job.kind, "name": job.name}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": policy.min_replicas,
        "maxReplicas": policy.max_replicas,
        "metrics": [dict(one) for one in policy.metrics],
    }
    return owned(job, AUTOSCALERS.document({"metadata": {"name": job.name}, "spec": spec}))
