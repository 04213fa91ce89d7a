"""The repository from which a cluster, or another service that runs jobs, pulls images."""

from __future__ import annotations

from danlu.engine.settings import Settings
from danlu.errors import UsageError


def cluster_repository(name: str, settings: Settings, registry: str | None = None) -> str:
    """Return the repository that an image is pushed to: ``REGISTRY/NAME``.

    ``registry`` is by default that of clusters. Raises :class:`UsageError` if none is configured.
    """
    registry = settings.config.kubernetes.registry if registry is None else registry
    registry = registry.rstrip("/")
    if not registry:
        raise UsageError(
            "no registry configured for cluster images",
            hint='add `[kubernetes]` with `registry = "registry.example.org/team"` to'
            f" {settings.paths.config_file}, or push the image yourself and pass --image",
        )
    return f"{registry}/{name}"
