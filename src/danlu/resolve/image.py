"""Images of registries as bases: their digest, and what the packages laid on them must know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.environment.lock import LockedBase, LockedImage
from danlu.errors import OutsideError
from danlu.oci.digest import Digest
from danlu.resolve.probe import Probe, probe

if TYPE_CHECKING:
    from danlu.resolve.resolve import Resolving

__all__ = ["dpkg_status", "resolve_digest", "resolve_image_base"]


async def resolve_digest(reference: str, resolving: Resolving) -> str:
    """The digest of the platform's manifest that ``reference`` names now."""
    from danlu.sources.image import resolve

    return await resolve(
        reference, resolving.platform, config=resolving.config, offline=resolving.offline
    )


async def resolve_image_base(reference: str, resolving: Resolving) -> LockedBase:
    """The image as a base: digest, creation time, distribution, C library and Python.

    The image is pulled, since only its files tell; building needs it anyway.
    """
    digest = await resolve_digest(reference, resolving)
    known = await inspect(reference, digest, resolving)
    return LockedBase(
        inputs="",
        epoch=known.epoch,
        distribution=known.probe.distribution,
        codename=known.probe.codename,
        libc=known.probe.libc,
        image=LockedImage(reference, digest),
        interpreter=known.probe.interpreter,
        python=known.probe.python,
    )


class Inspected(msgspec.Struct, frozen=True):
    """What an image's configuration and files say."""

    epoch: int
    probe: Probe


async def inspect(reference: str, digest: str, resolving: Resolving) -> Inspected:
    """Pull the image and look into it; remembered by its digest."""
    store = resolving.store
    key = f"inspected:{digest}"
    if (record := store.record(key)) is not None:
        return Inspected(record["epoch"], Probe(**record["probe"]))
    from danlu.sources.image import pull

    pulled = await pull(
        reference, digest, store=store, config=resolving.config, offline=resolving.offline
    )
    found = await probe(pulled.layers, resolving)
    inspected = Inspected(_created(pulled.config), found)
    value: dict[str, Any] = {"epoch": inspected.epoch, "probe": found.fields()}
    store.put_record(key, value, layers=[layer.diff_id for layer in pulled.layers])
    return inspected


def _created(config: bytes) -> int:
    """Seconds of the configuration's ``created`` (RFC 3339), 0 where it tells none."""
    from datetime import datetime

    text = json.loads(config).get("created") or ""
    if not text:
        return 0
    # Registries give up to nine digits of a second, fromisoformat takes six.
    head = text.replace("Z", "+00:00").split(".")[0]
    moment = datetime.fromisoformat(head if "+" in head else head + "+00:00")
    return max(0, int(moment.timestamp()))


async def dpkg_status(base: LockedBase, resolving: Resolving) -> str:
    """``/var/lib/dpkg/status`` of an image base."""
    from danlu.sources.image import pull

    assert base.image is not None
    pulled = await pull(
        base.image.reference,
        Digest(base.image.digest),
        store=resolving.store,
        config=resolving.config,
        offline=resolving.offline,
    )
    for layer in reversed(pulled.layers):
        path = layer.tree / "var/lib/dpkg/status"
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    raise OutsideError(
        f"the image {base.image.reference} has no package database of Debian's kind",
        hint="install.apt_packages needs a base of the Debian or Ubuntu family",
    )
