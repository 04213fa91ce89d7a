"""Which image of an index is for a platform."""

from __future__ import annotations

from danlu.errors import OutsideError
from danlu.oci.text import printable
from danlu.oci.types import Descriptor, Index, Platform

__all__ = ["pick"]

#: What a platform without a variant means (containerd, platforms/database.go).
_DEFAULT_VARIANT = {"arm64": "v8", "arm": "v7"}


def pick(
    index: Index, *, os: str, architecture: str, variant: str = "", name: str = "the image"
) -> Descriptor:
    """The manifest of ``index`` for a platform; of several the first.

    Raises :class:`OutsideError` naming the platforms that there are.
    """
    wanted = Platform(architecture, os, variant)
    images = [one for one in index.manifests if _is_image(one)]
    for exact in (True, False):
        for one in images:
            if one.platform is not None and _fits(one.platform, wanted, exact=exact):
                return one
    # An index of one image often does not say what it is for; its config does.
    if len(images) == 1 and images[0].platform is None:
        return images[0]
    known = sorted({_shown(one.platform) for one in images if one.platform is not None})
    raise OutsideError(
        f"{name} is not made for {_shown(wanted)}",
        hint=f"it is made for {', '.join(known)}" if known else "its index is empty",
    )


def _is_image(descriptor: Descriptor) -> bool:
    """BuildKit's attestations stand beside the images, for the platform ``unknown``."""
    return descriptor.platform is None or descriptor.platform.os != "unknown"


def _fits(platform: Platform, wanted: Platform, *, exact: bool) -> bool:
    if (platform.os, platform.architecture) != (wanted.os, wanted.architecture):
        return False
    default = _DEFAULT_VARIANT.get(wanted.architecture, "")
    if (platform.variant or default) == (wanted.variant or default):
        return True
    return not exact and not wanted.variant


def _shown(platform: Platform) -> str:
    parts = (platform.os, platform.architecture, platform.variant)
    return printable("/".join(part for part in parts if part))
