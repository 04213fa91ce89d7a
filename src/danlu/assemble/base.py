"""The base of an image: a distribution's packages, or an image of a registry."""

from __future__ import annotations

from danlu.environment.lock import FunctionLock, LockedImage
from danlu.environment.types import Environment
from danlu.graph import Bootstrap, ImageSource, Platform, Unresolved, Vertex

__all__ = ["base_vertex", "image_vertex"]


def base_vertex(environment: Environment, lock: FunctionLock | None, platform: Platform) -> Vertex:
    """The vertex everything stands on."""
    base = environment.base
    label = base.os or base.image
    if lock is None:
        op = Unresolved("base", (label,))
        return Vertex(op, name=f"base {label}", branch="base", spans=(base.span,))
    if lock.base.image is not None:
        return image_vertex(lock.base.image, platform, branch="base", environment=environment)
    bootstrap = Bootstrap(
        distribution=lock.base.distribution,
        codename=lock.base.codename,
        packages=lock.base.packages,
        epoch=lock.base.epoch,
    )
    name = f"base {label} ({len(lock.base.packages)} packages)"
    return Vertex(bootstrap, name=name, branch="base", spans=(base.span,))


def image_vertex(
    image: LockedImage, platform: Platform, *, branch: str, environment: Environment | None = None
) -> Vertex:
    """An image of a registry as a root."""
    spans = (environment.base.span,) if environment else ()
    source = ImageSource(image.reference, image.digest, platform)
    return Vertex(source, name=f"image {image.reference}", branch=branch, spans=spans)
