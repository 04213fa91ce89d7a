"""Push images to the registry from which the nodes of a cluster pull."""

from __future__ import annotations

from danlu.engine.settings import Settings
from danlu.graph.progress import Progress
from danlu.image.export import push_names
from danlu.image.manage import find_image
from danlu.sandbox import userns
from danlu.store import Store


def push_cluster_image(digest: str, repository: str, settings: Settings, progress: Progress) -> str:
    """Push an image of the store without the layers that are there; return its reference.

    Forks, so the process must not have other threads. The reference is by digest.
    """
    return userns.run_inside(
        settings.paths, lambda: _push_image(digest, repository, settings, progress)
    )


def _push_image(digest: str, repository: str, settings: Settings, progress: Progress) -> str:
    tag = digest.rpartition(":")[2][:12]
    with Store.open(settings.paths.store) as store, store.lease():
        image = find_image(store, digest)
        manifest = push_names(
            store, image, [f"{repository}:{tag}"], settings=settings, progress=progress
        )
    return f"{repository}@{manifest}"
