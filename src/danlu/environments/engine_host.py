"""What commands give to engines."""

from __future__ import annotations

from danlu.engine.engine_commands import EngineHost
from danlu.engine.settings import Settings
from danlu.graph.progress import Progress


def create_engine_host(settings: Settings, progress: Progress) -> EngineHost:
    """Return what an engine may need of this machine."""

    def push_image(digest: str, name: str) -> str:
        # Only some engines need the client of registries.
        from danlu.image.cluster_push import push_cluster_image
        from danlu.image.cluster_repository import cluster_repository

        return push_cluster_image(digest, cluster_repository(name, settings), settings, progress)

    return EngineHost(settings.paths, settings.config, progress, push_image)
