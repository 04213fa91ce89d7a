"""Turn the statuses of layers that are pushed or pulled into progress events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from danlu.errors import TemporaryError
from danlu.graph.progress import LAYER_BRANCH, Finished, Message, Progress, Started, Transfer
from danlu.oci.image import Image
from danlu.oci.layer_status import LayerState, LayerStatus, LayerTotals
from danlu.util.human import format_duration, format_size, pluralize, shorten_digest

_RUNNING: dict[LayerState, str] = {"compressing": "compressing ", "unpacking": "unpacking "}
_ENDED = ("done", "exists", "mounted")


class TransferSummary(msgspec.Struct, frozen=True):
    """How many layers were transferred, existed, or were mounted, and the bytes transferred."""

    transferred: int = 0
    existing: int = 0
    mounted: int = 0
    size: int = 0

    def format(self, verb: str) -> str:
        """Return ``sent 2 layers (31 MB), 40 exist, 1 mounted``."""
        size = f" ({format_size(self.size)})" if self.transferred else ""
        parts = [f"{verb} {pluralize(self.transferred, 'layer')}{size}"]
        parts += [f"{self.existing} existed"] if self.existing else []
        parts += [f"{self.mounted} mounted from another repository"] if self.mounted else []
        return ", ".join(parts)


class TransferProgress:
    """Reports the push or pull of ``name`` as a vertex, and each of its layers as another."""

    def __init__(
        self,
        name: str,
        branch: str,
        progress: Progress,
        *,
        images: Sequence[Image] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._branch = branch
        self._progress = progress
        self._clock = clock
        self._origin = clock()
        self._totals = LayerTotals()
        self._labels = {
            diff_id: created_by
            for image in images
            for diff_id, created_by in zip(image.diff_ids, image.created_by, strict=True)
        }
        #: The names of layers under way, and when they started.
        self._running: dict[str, tuple[str, float]] = {}
        self._silent_until = 0.0

    def start(self) -> None:
        """Report that the transfer starts."""
        self._progress(Started(self._name, self._name, self._branch, 0.0))

    def finish(self) -> TransferSummary:
        """Report that everything was transferred; return what that was."""
        now = self._elapsed_seconds()
        summary = self.summarize()
        self._progress(
            Finished(
                self._name, self._name, self._branch, now, now, cached=False, size=summary.size
            )
        )
        return summary

    def summarize(self) -> TransferSummary:
        """Return what was transferred so far."""
        done = self._totals.list_in("done")
        return TransferSummary(
            len(done),
            len(self._totals.list_in("exists")),
            len(self._totals.list_in("mounted")),
            sum(status.total for status in done),
        )

    def report_layer(self, status: LayerStatus) -> None:
        """Report the change of a layer."""
        self._totals.update(status)
        now = self._elapsed_seconds()
        if status.state in _ENDED:
            self._finish_layer(status, now)
        elif status.state != "waiting":
            self._update_layer(status, now)
        self._progress(Transfer(self._name, self._name, *self._totals.sums, now))

    def report_retry(self, error: TemporaryError, wait: float) -> None:
        """Report a failure that is retried: once, if all connections fail together."""
        now = self._elapsed_seconds()
        if now >= self._silent_until:
            self._silent_until = now + wait
            text = f"{error.message}; trying again in {format_duration(wait)}"
            self._progress(Message(text, now))

    def _update_layer(self, status: LayerStatus, now: float) -> None:
        vertex = self._layer_vertex(status)
        name = _RUNNING.get(status.state, "") + self._layer_name(status)
        shown = self._running.get(vertex)
        if shown is None or shown[0] != name:
            started = shown[1] if shown else now
            self._running[vertex] = (name, started)
            self._progress(Started(vertex, name, LAYER_BRANCH, now))
        if status.state == "transferring":
            self._progress(Transfer(vertex, name, status.current, status.total, now))

    def _finish_layer(self, status: LayerStatus, now: float) -> None:
        vertex = self._layer_vertex(status)
        _, started = self._running.pop(vertex, ("", now))
        self._progress(
            Finished(
                vertex,
                self._layer_name(status),
                LAYER_BRANCH,
                now,
                now - started,
                cached=status.state != "done",
                size=status.total,
            )
        )

    def _layer_vertex(self, status: LayerStatus) -> str:
        return f"{self._name} {status.diff_id}"

    def _layer_name(self, status: LayerStatus) -> str:
        label = " ".join(self._labels.get(status.diff_id, "").split())[:40]
        return f"{shorten_digest(status.diff_id)} {label}".rstrip()

    def _elapsed_seconds(self) -> float:
        return self._clock() - self._origin
