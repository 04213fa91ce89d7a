"""The repository from which the nodes of a cluster pull images."""

from __future__ import annotations

from danlu.engine.settings import Settings
from danlu.errors import UsageError


def cluster_repository(name: str, settings: Settings) -> str:
    """Return the repository that an image is pushed to: ``REGISTRY/NAME``.

    Raises :class:`UsageError` if no registry is configured.
    """
    registry = settings.config.kubernetes.registry.rstrip("/")
    if not registry:
        raise UsageError(
            "no registry configured for cluster images",
            hint='add `[kubernetes]` with `registry = "registry.example.org/team"` to'
            f" {settings.paths.config_file}, or push the image yourself and pass --image",
        )
    return f"{registry}/{name}"
