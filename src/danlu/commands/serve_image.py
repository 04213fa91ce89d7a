"""Check that an image can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.commands.image.manage import find_image
from danlu.commands.packed_runs import read_file
from danlu.errors import UsageError
from danlu.sandbox import userns
from danlu.serving import layout
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.commands.settings import Settings


def require_server(name: str, settings: Settings) -> None:
    """Raise :class:`UsageError` unless an image of the store is a packed model with a server.

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
