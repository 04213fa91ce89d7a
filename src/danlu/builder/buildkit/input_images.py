"""Write what a step reads, its layers and its directories, as images that BuildKit can fetch.

Everything is named by its content, so that a daemon fetches only what it does not have, and equal
steps of different machines have one cache key. A layer that the daemon is known to have is named
but not written: writing hundreds of megabytes takes longer than most steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from danlu.oci.blob_export import LayerBlob
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import make_image
from danlu.oci.layout import write_layout
from danlu.oci.tar import LayerSummary, NormalizeOptions, write_layer
from danlu.store import Store

#: The modification time of mounted files: the oldest that a zip archive can hold, because steps
#: pack them into wheels. Their own times would give each machine other cache keys.
INPUT_TIME = 315532800


class InputImages:
    """Images in the OCI layout ``directory``: stacks of layers, and directories to mount.

    ``platform`` is an operating system and an architecture.
    """

    def __init__(self, store: Store, directory: Path, platform: tuple[str, str]) -> None:
        self.directory = directory
        self._store = store
        self._platform = platform
        self._known_layers: set[DiffId] = set()
        self._omitted = _TreeSource(store)

    def omit_layers(self, layers: Iterable[DiffId]) -> None:
        """Leave out these layers from now on, because the daemon has them."""
        self._known_layers.update(layers)

    def add_stack(self, trees: Sequence[Path], *, epoch: int) -> Digest:
        """Add an image of these trees, lowest first; return the digest of its manifest.

        A tree that is not a layer of the store gets no time after ``epoch`` in the image.
        """
        source = _TreeSource(self._store)
        layers = []
        for tree in trees:
            layer = self._store.layer_at(tree)
            if layer is None:
                layers.append(source.add_tree(tree, NormalizeOptions(clamp=epoch)))
                continue
            layers.append(source.add_layer(layer.diff_id, layer.size))
            if layer.diff_id in self._known_layers:
                self._omitted.add_layer(layer.diff_id, layer.size)
        return self._write_image(layers, source)

    def write_omitted_layers(self) -> None:
        """Write the layers that the daemon was believed to have, and from now on all layers."""
        self._known_layers.clear()
        if layers := self._omitted.list_layers():
            self._write_image(layers, self._omitted)

    def add_mount(self, path: Path, scratch: Path) -> tuple[Digest, str]:
        """Add an image of the file or directory ``path``.

        Returns the digest of the manifest, and the path in it to mount. ``scratch`` is an empty
        directory for a copy of a file.
        """
        selector = ""
        if not path.is_dir():
            shutil.copy2(path, scratch / "file")
            path, selector = scratch, "/file"
        source = _TreeSource(self._store)
        layer = source.add_tree(path, NormalizeOptions(mtime=INPUT_TIME))
        return self._write_image([layer], source), selector

    def _write_image(self, layers: Sequence[DiffId], source: _TreeSource) -> Digest:
        system, architecture = self._platform
        described = [(diff_id, "") for diff_id in layers]
        image = make_image(described, architecture=architecture, os=system)
        written = write_layout(self.directory, image, source, kind="none", omit=self._known_layers)
        return written.manifest.digest


class _TreeSource:
    """Layers of the store and trees outside of it, for :func:`write_layout`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: dict[DiffId, int] = {}
        self._trees: dict[DiffId, tuple[Path, NormalizeOptions]] = {}

    def add_layer(self, diff_id: DiffId, size: int) -> DiffId:
        self._sizes[diff_id] = size
        return diff_id

    def add_tree(self, tree: Path, normalise: NormalizeOptions) -> DiffId:
        summary = write_layer(tree, None, normalise=normalise)
        self._sizes[summary.diff_id] = summary.size
        self._trees[summary.diff_id] = (tree, normalise)
        return summary.diff_id

    def find_blob(self, diff_id: DiffId, kind: Compression) -> LayerBlob | None:
        # Uncompressed, a blob is the tar itself.
        return LayerBlob(kind, Digest(diff_id), self._sizes[diff_id])

    def list_layers(self) -> list[DiffId]:
        return list(self._sizes)

    def size(self, diff_id: DiffId) -> int:
        return self._sizes[diff_id]

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        if diff_id not in self._trees:
            return self._store.write_tar(diff_id, write)
        tree, normalise = self._trees[diff_id]
        return write_layer(tree, write, normalise=normalise)

    def record_blob(self, diff_id: DiffId, blob: LayerBlob) -> None:
        """Record nothing: the digest is known."""
