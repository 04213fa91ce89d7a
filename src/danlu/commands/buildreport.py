"""What a finished build says of itself, to people and to ``--metadata-file``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import DanluError

if TYPE_CHECKING:
    from danlu.builder.types import VertexReport
    from danlu.store import Layer, Store

__all__ = [
    "BuildReport",
    "LayerReport",
    "StepReport",
    "layer_report",
    "metadata",
    "step_report",
    "write_metadata",
]


class LayerReport(msgspec.Struct, frozen=True):
    """One layer of a finished image; ``digest`` is empty until it was compressed for someone."""

    digest: str
    diff_id: str
    size: int
    created_by: str


class StepReport(msgspec.Struct, frozen=True):
    """One vertex of a finished build; ``line`` is the place in the build file, or empty."""

    name: str
    cached: bool
    seconds: float
    line: str
    digest: str = ""
    size: int = 0


class BuildReport(msgspec.Struct, frozen=True):
    """What a build gave. ``digest`` is a manifest's, empty where none was written or pushed."""

    digest: str
    config: str
    size: int
    layers: tuple[LayerReport, ...]
    lock: str
    vertices: tuple[StepReport, ...]
    seconds: float
    builder: str
    names: tuple[str, ...] = ()
    lock_changes: tuple[str, ...] = ()
    unchanged: bool = False
    outputs: tuple[str, ...] = ()


def layer_report(store: Store, layer: Layer, compression: str) -> LayerReport:
    """``layer``, with the digest it has in ``compression`` where it was compressed so."""
    made = store.compressed(layer.diff_id, compression)
    return LayerReport(made.digest if made else "", layer.diff_id, layer.size, layer.created_by)


def step_report(one: VertexReport) -> StepReport:
    """What the builder says of a vertex, with the first of its lines."""
    line = str(one.spans[0]) if one.spans else ""
    return StepReport(one.name, one.cached, one.seconds, line, one.digest, one.size)


def metadata(report: BuildReport) -> dict[str, Any]:
    """The report in the shape of ``--metadata-file``."""
    import msgspec

    return {
        "image": {
            "digest": report.digest,
            "config": report.config,
            "size": report.size,
            "layers": msgspec.to_builtins(report.layers),
        },
        "lock": report.lock,
        "vertices": [
            {"name": one.name, "cached": one.cached, "seconds": one.seconds, "line": one.line}
            for one in report.vertices
        ],
        "seconds": report.seconds,
        "builder": report.builder,
    }


def write_metadata(report: BuildReport, path: Path) -> None:
    """Write :func:`metadata` to ``path``, whole or not at all.

    Raises :class:`DanluError` where that cannot be written.
    """
    import msgspec

    from danlu.util.files import write_atomic

    text = msgspec.json.format(msgspec.json.encode(metadata(report)), indent=2) + b"\n"
    try:
        write_atomic(path, text)
    except OSError as error:
        raise DanluError(f"cannot write {path}: {error.strerror}") from error
