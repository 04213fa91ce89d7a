"""Layer sources for tests: trees in a directory that record what is requested of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from danlu.oci.blob_export import LayerBlob
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId
from danlu.oci.image import Image, make_image
from danlu.oci.tar import LayerSummary, write_layer


@dataclass
class TreeLayerSource:
    """A layer source over trees below ``place``; ``written`` are the layers it wrote tars of."""

    place: Path
    trees: dict[DiffId, Path] = field(default_factory=dict)
    sizes: dict[DiffId, int] = field(default_factory=dict)
    blobs: dict[tuple[DiffId, str], LayerBlob] = field(default_factory=dict)
    written: list[DiffId] = field(default_factory=list)

    def add(self, files: Mapping[str, str | bytes]) -> DiffId:
        tree = self.place / f"tree{len(self.trees)}"
        tree.mkdir(parents=True)
        for name, content in files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        summary = write_layer(tree, None)
        self.trees[summary.diff_id] = tree
        self.sizes[summary.diff_id] = summary.size
        return summary.diff_id

    def find_blob(self, diff_id: DiffId, kind: Compression) -> LayerBlob | None:
        return self.blobs.get((diff_id, kind))

    def size(self, diff_id: DiffId) -> int:
        return self.sizes[diff_id]

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        self.written.append(diff_id)
        return write_layer(self.trees[diff_id], write)

    def record_blob(self, diff_id: DiffId, blob: LayerBlob) -> None:
        self.blobs[diff_id, blob.kind] = LayerBlob(blob.kind, blob.digest, blob.size)


def image_of(
    source: TreeLayerSource,
    layers: Sequence[Mapping[str, str | bytes]],
    *,
    command: Sequence[str] = ("/hello",),
    architecture: str = "amd64",
) -> Image:
    """An image of such layers."""
    results = [(source.add(files), f"layer {number}") for number, files in enumerate(layers)]
    return make_image(
        results,
        architecture=architecture,
        created=1_700_000_000,
        environment=[("PATH", "/bin")],
        command=command,
        working_directory="/",
    )
