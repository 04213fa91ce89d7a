"""The cluster of the operator's tests, as an engine of environments."""

from __future__ import annotations

from tests.operator.cluster.conftest import RunningCluster


def cluster_variables(cluster: RunningCluster) -> dict[str, str]:
    """Variables with which danlu's context is that cluster."""
    return {
        "DANLU_CONTEXT": "kubernetes",
        "DANLU_KUBERNETES_REGISTRY": f"{cluster.registry}/environments",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
