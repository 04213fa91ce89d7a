"""The image of an environment in the store."""

from __future__ import annotations

from danlu.engine.environment_directory import EnvironmentSpec
from danlu.errors import StoreError
from danlu.store import Layer, Store
from danlu.store.types import StoredImage


def find_environment_image(store: Store, spec: EnvironmentSpec) -> tuple[StoredImage, list[Layer]]:
    """Return the image of an environment and its layers, lowest first.

    Raises :class:`StoreError` if the store does not have it.
    """
    image = store.image(spec.image)
    layers = store.layers(image.layers) if image is not None else None
    if image is None or layers is None:
        raise StoreError(
            f"the image of environment {spec.name} is missing from the store",
            hint="run `danlu up` in its project to build it again",
        )
    return image, layers
