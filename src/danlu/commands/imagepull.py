"""``danlu image pull``: an image of a registry, into the store under its name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from danlu.graph import Progress, Transfer

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.store import Store, StoredImage

__all__ = ["pull_image"]


def pull_image(
    store: Store, reference: str, *, platform: str = "", settings: Settings, progress: Progress
) -> StoredImage:
    """Pull the image that ``reference`` names now, for ``platform`` (default: this machine's).

    Layers that are here already do not travel. Raises :class:`~danlu.errors.OutsideError` where
    the registry refuses or lacks it, :class:`~danlu.errors.UsageError` for no reference.
    """
    import anyio

    from danlu.commands.build import parse_platform
    from danlu.oci.reference import Reference
    from danlu.sources.image import pull, resolve

    named = Reference.parse(reference)
    target = parse_platform(platform)
    began = time.monotonic()

    def moved(current: int, total: int) -> None:
        vertex = f"pull {reference}"
        progress(Transfer(vertex, vertex, current, total, time.monotonic() - began))

    async def work() -> StoredImage:
        digest = await resolve(reference, target, config=settings.config, offline=False)
        pulled = await pull(
            reference, digest, store=store, config=settings.config, offline=False, transfer=moved
        )
        names = [named.familiar] if named.digest is None else []
        layers = [layer.diff_id for layer in pulled.layers]
        return store.put_image(
            pulled.config, layers, names=names, metadata={"pulled": f"{named}", "manifest": digest}
        )

    with store.lease():
        return anyio.run(work)
