"""Pull an image from a registry into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from danlu.errors import TemporaryError
from danlu.graph.ops import parse_platform
from danlu.graph.progress import Progress
from danlu.image.transfer_progress import TransferProgress, TransferSummary
from danlu.oci.digest import sha256
from danlu.oci.reference import Reference
from danlu.sandbox.emulation import host_platform
from danlu.sources.image import pull, resolve_reference

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.store import Store, StoredImage

_REPEAT_HINT = "what was downloaded is kept, and the next pull continues from there"


def pull_image(
    store: Store, reference: str, *, platform: str = "", settings: Settings, progress: Progress
) -> tuple[StoredImage, TransferSummary]:
    """Pull the image that ``reference`` resolves to, for ``platform`` (default: this machine's).

    Layers that the store has are not downloaded, and interrupted downloads are continued. Raises
    :class:`~danlu.errors.UsageError` for an invalid reference,
    :class:`~danlu.errors.OutsideError` if the registry refuses the request.
    """
    named = Reference.parse(reference)
    target = parse_platform(platform) if platform else host_platform()
    transfer = TransferProgress(reference, "pull", progress)

    async def resolve_and_pull() -> StoredImage:
        digest = await resolve_reference(
            reference, target, config=settings.config, on_retry=transfer.report_retry
        )
        pulled = await pull(
            reference,
            digest,
            store=store,
            config=settings.config,
            on_layer=transfer.report_layer,
            on_retry=transfer.report_retry,
        )
        names = [named.familiar_name] if named.digest is None else []
        layers = [layer.diff_id for layer in pulled.layers]
        # What a build recorded about its Python, for example, stays.
        known = store.image(sha256(pulled.config))
        metadata = {**(known.metadata if known else {}), "pulled": str(named), "manifest": digest}
        return store.put_image(pulled.config, layers, names=names, metadata=metadata)

    transfer.start()
    with store.lease():
        try:
            image = anyio.run(resolve_and_pull)
        except TemporaryError as error:
            error.hint = f"{error.hint or 'check the network'}; {_REPEAT_HINT}"
            raise
    return image, transfer.finish()
