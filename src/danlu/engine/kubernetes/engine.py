"""The engine Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.engine import Engine, EngineFeatures, StartContainer
from danlu.util.config import Configuration
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.engine.engine_commands import EngineCommands


class KubernetesEngine(Engine):
    """Containers in pods of a cluster."""

    name = "kubernetes"
    job_service = "danlu.jobs.kubernetes.service"
    features = EngineFeatures(
        networks=(),
        mounts_files=False,
        gpus="engine",
        keeps_files=False,
        runs_jobs=True,
        is_cluster=True,
    )

    def load_commands(self) -> EngineCommands:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.kubernetes.commands import KubernetesCommands

        return KubernetesCommands()

    def open_engine(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> StartContainer:
        """See :class:`~danlu.engine.engine.Engine`."""
        from danlu.engine.kubernetes.container import KubernetesStarter

        return KubernetesStarter(paths.vscode_servers).start_container


ENGINE = KubernetesEngine()
