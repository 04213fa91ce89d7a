"""Check that an image can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.graph.image_config import parse_image_config
from danlu.image.manage import find_image
from danlu.packing.packed_runs import read_file
from danlu.sandbox import userns
from danlu.serving import layout
from danlu.serving.model_servers import ModelServer, find_model_server
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.store import StoredImage


def read_server_label(image: StoredImage) -> ModelServer:
    """Return the model server of a packed image."""
    labels = dict(parse_image_config(image.config).labels)
    return find_model_server(labels.get(layout.SERVER_LABEL, ""))


def require_server(name: str, settings: Settings) -> ModelServer:
    """Return the model server of an image of the store.

    Raises :class:`UsageError` unless the image is a packed model that has one.

    Enters a user namespace, which a process cannot leave.
    """
    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store, store.lease():
        image = find_image(store, name)
        if read_file(store, image, layout.ORIGIN, 1) is None:
            raise UsageError(
                f"{name} is not a packed model", hint="`danlu pack` makes images to serve"
            )
        if read_file(store, image, layout.SERVE, 1) is None:
            raise UsageError(
                f"{name} has no model server",
                hint="pack it again without --no-server; the server needs NumPy (--keep numpy)",
            )
        return read_server_label(image)
