"""The engine Kubernetes."""

from __future__ import annotations

from danlu.engine.docker.stopped_container import AttachedContainer
from danlu.engine.engine import ContainerStarter, Engine, EngineFeatures
from danlu.util.config import Configuration
from danlu.util.paths import Paths


class KubernetesEngine(Engine):
    """Containers in pods of a cluster."""

    name = "kubernetes"
    features = EngineFeatures(
        networks=(),
        mounts_files=False,
        has_host_gpus=False,
        keeps_files=False,
        runs_jobs=True,
        is_cluster=True,
    )

    def open_starter(
        self, paths: Paths, config: Configuration, restarted: AttachedContainer | None
    ) -> ContainerStarter:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.kubernetes.container import KubernetesStarter

        return KubernetesStarter(paths.vscode_servers)


ENGINE = KubernetesEngine()
