"""Pull an image from a registry into the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from danlu.graph.ops import parse_platform
from danlu.graph.progress import Progress, Transfer
from danlu.oci.reference import Reference
from danlu.sandbox.emulation import host_platform
from danlu.sources.image import pull, resolve_reference

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.store import Store, StoredImage


def pull_image(
    store: Store, reference: str, *, platform: str = "", settings: Settings, progress: Progress
) -> StoredImage:
    """Pull the image that ``reference`` resolves to, for ``platform`` (default: this machine's).

    Layers that the store has are not downloaded. Raises :class:`~danlu.errors.UsageError` for an
    invalid reference, :class:`~danlu.errors.OutsideError` if the registry refuses the request.
    """
    named = Reference.parse(reference)
    target = parse_platform(platform) if platform else host_platform()
    started = time.monotonic()

    def report(current: int, total: int) -> None:
        vertex = f"pull {reference}"
        progress(Transfer(vertex, vertex, current, total, time.monotonic() - started))

    async def resolve_and_pull() -> StoredImage:
        digest = await resolve_reference(reference, target, config=settings.config, offline=False)
        pulled = await pull(
            reference, digest, store=store, config=settings.config, offline=False, transfer=report
        )
        names = [named.familiar_name] if named.digest is None else []
        layers = [layer.diff_id for layer in pulled.layers]
        metadata = {"pulled": str(named), "manifest": digest}
        return store.put_image(pulled.config, layers, names=names, metadata=metadata)

    with store.lease():
        return anyio.run(resolve_and_pull)
