"""How far the transfer of a layer to or from a registry is."""

from __future__ import annotations

from typing import Literal

import msgspec

from danlu.oci.digest import DiffId

#: ``exists``: the receiver had the layer; ``mounted``: the registry had it in another repository.
LayerState = Literal[
    "waiting", "compressing", "transferring", "unpacking", "done", "exists", "mounted"
]


class LayerStatus(msgspec.Struct, frozen=True):
    """The state of a layer, the bytes of it that were transferred, and its size.

    The size is an estimate until the layer is compressed.
    """

    diff_id: DiffId
    state: LayerState
    current: int = 0
    total: int = 0


class LayerTotals:
    """The statuses of all layers of a transfer, and their sums."""

    def __init__(self) -> None:
        self._statuses: dict[DiffId, LayerStatus] = {}

    def update(self, status: LayerStatus) -> None:
        """Replace the status of a layer."""
        self._statuses[status.diff_id] = status

    def list_in(self, *states: LayerState) -> list[LayerStatus]:
        """Return the statuses of the layers in these states."""
        return [status for status in self._statuses.values() if status.state in states]

    @property
    def sums(self) -> tuple[int, int]:
        """The bytes transferred so far, and all to transfer."""
        moved = [
            status
            for status in self._statuses.values()
            if status.state not in ("exists", "mounted")
        ]
        return sum(status.current for status in moved), sum(status.total for status in moved)
