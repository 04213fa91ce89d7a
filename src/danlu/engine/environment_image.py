"""What an environment is made of on this machine: its image in the store, and its mounts."""

from __future__ import annotations

from pathlib import Path

from danlu.engine.environment_directory import EnvironmentSpec
from danlu.engine.vscode_servers import find_server_mount
from danlu.errors import StoreError
from danlu.sandbox.types import PROJECT_DIRECTORY, Mount
from danlu.store import Layer, Store
from danlu.store.types import StoredImage
from danlu.util.paths import Paths


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


def list_mounts(spec: EnvironmentSpec, paths: Paths) -> list[Mount]:
    """Return the mounts of an environment: the user's, VS Code's servers and the project."""
    servers = find_server_mount(paths.vscode_servers)
    mounts = [*spec.mounts, *([servers] if servers is not None else [])]
    if spec.project:
        mounts.append(Mount(PROJECT_DIRECTORY, Path(spec.project)))
    return mounts
