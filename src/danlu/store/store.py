"""The store: one directory per user, shared by all projects and by concurrent processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.oci.digest import DiffId, Digest
from danlu.store import blobs as blob_files
from danlu.store import images as stored_images
from danlu.store import layers as layer_trees
from danlu.store.blobs import BlobWriter
from danlu.store.errors import ErrorTranslator, to_store_error
from danlu.store.index import INDEX, SYNCED, StoreIndex
from danlu.store.leases import StoreLease, hold_lease
from danlu.store.partials import PartialBlob, open_partial, remove_partials
from danlu.store.staging import has_orphans, new_directory, remove_orphans
from danlu.store.types import (
    CompressedLayer,
    GcResult,
    Layer,
    StoredImage,
    StoreInconsistency,
    StoreUsage,
)
from danlu.util.disk_full import is_disk_full
from danlu.util.files import remove_tree

if TYPE_CHECKING:
    from danlu.oci.tar import LayerSummary, NormalizeOptions, TarSplit

#: How long the beginning of an interrupted download is kept.
_PARTIAL_SECONDS = 7 * 24 * 3600

#: The size of a row of each kind, for :meth:`Store.usage`.
_ROW_SIZES = {
    "layers": "size",
    "blobs": "size",
    "images": "length(config) + length(metadata)",
    "records": "length(key) + length(value)",
}


class Store:
    """Blobs, unpacked layers, cache records and images below :attr:`root`.

    Safe to use from several threads and processes at once, but not across ``fork``. Failures of the
    disk or the index raise :class:`StoreError`.
    """

    def __init__(self, index: StoreIndex) -> None:
        self._index = index
        self.root = index.root
        self._swept = False

    @classmethod
    def open(
        cls, root: Path, *, clock: Callable[[], float] = time.time, frees_space: bool = False
    ) -> Store:
        """Open the store at ``root``, creating it if necessary; takes a few milliseconds.

        ``frees_space`` is for commands that remove something: only they may use the last of the
        space that is reserved for a full disk.
        Raises :class:`StoreError` if the store was written by a newer danlu or cannot be used.
        """
        with ErrorTranslator(root):
            return cls(StoreIndex(root, clock=clock, frees_space=frees_space))

    def close(self) -> None:
        """Close the index and release all locks."""
        self._index.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Create an empty directory on the store's file system, removed when the block ends.

        A full disk inside the block is raised as :class:`StoreError`.
        """
        index = self._index
        with index.translated_errors:
            self._sweep_once()
            path, descriptor = new_directory(index.staging)
        try:
            yield path
        except OSError as error:
            store_error = self._disk_full_error(error)
            if store_error is None:
                raise
            raise store_error from error
        finally:
            try:
                with index.translated_errors:
                    remove_tree(path)
            finally:
                # The lock goes last: until then no other process sweeps the same directory.
                os.close(descriptor)

    @contextmanager
    def partial_blob(self, digest: Digest) -> Iterator[PartialBlob]:
        """Open a file to download a blob into; it has what an interrupted download received.

        It is removed when the block ends or raises :class:`ChecksumError`, and otherwise kept until
        the next download, for a week or until :meth:`collect`. A full disk is raised as
        :class:`StoreError`.
        """
        with self._index.translated_errors:
            self._sweep_once()
        try:
            with open_partial(self.root / "partial", self._index.staging, digest) as partial:
                yield partial
        except OSError as error:
            store_error = self._disk_full_error(error)
            if store_error is None:
                raise
            raise store_error from error

    def _sweep_once(self) -> None:
        """Remove leftovers of builds that were killed at least an hour ago, once per open store.

        Recent leftovers wait for :meth:`collect`, so that the build right after a kill is not
        slowed down, while a machine on which nobody collects stays clean all the same.
        """
        with self._index.lock:
            if not self._swept:
                self._swept = True
                remove_orphans(self._index.staging, older_than=3600)
                remove_partials(self.root / "partial", older_than=_PARTIAL_SECONDS)

    def has_leftovers(self) -> bool:
        """Return whether a killed process left a :meth:`staging` directory behind."""
        with self._index.translated_errors:
            return has_orphans(self._index.staging)

    def sweep(self) -> None:
        """Remove leftovers of killed processes, except those in use or with something mounted."""
        with self._index.translated_errors:
            remove_orphans(self._index.staging)

    def _disk_full_error(self, error: OSError) -> BaseException | None:
        if not is_disk_full(error):
            return None
        filename = error.filename
        if isinstance(filename, str) and not Path(filename).is_relative_to(self.root):
            return None
        return to_store_error(error, self.root)

    def epoch(self) -> str:
        """Return a text that changes when anything is removed from the store or renamed in it."""
        return self._index.epoch()

    def reading(self) -> AbstractContextManager[None]:
        """Group many short reads, so that they wait for garbage collection only once.

        While the block runs, nothing is collected and other threads of this process are blocked.
        """
        return self._index.reading()

    @contextmanager
    def lease(self) -> Iterator[StoreLease]:
        """Protect everything this store object creates or reads in the block from collection.

        The kernel ends the lease with the process. Leases can nest and overlap; all of them end
        together with the last one of this object.
        """
        with hold_lease(self._index) as lease:
            yield lease

    def commit_layer(
        self,
        staged: Path,
        summary: LayerSummary,
        *,
        created_by: str,
        normalise: NormalizeOptions | TarSplit | None = None,
    ) -> Layer:
        """Make the directory ``staged`` (inside a :meth:`staging` directory) a layer, atomically.

        Args:
            summary: what ``write_layer(staged, normalise=normalise)`` returned.
            normalise: stored with the layer, so that its digest can be checked later. For a layer
                of another builder, the tar-split data that reproduces its tar.

        If the layer already exists, ``staged`` is removed and the existing layer returned.
        """
        return layer_trees.commit(
            self._index, staged, summary, created_by=created_by, normalise=normalise
        )

    def layer(self, diff_id: DiffId) -> Layer | None:
        """Return a layer, or None if it is missing or damaged."""
        return layer_trees.get(self._index, diff_id)

    def layer_at(self, tree: Path) -> Layer | None:
        """Return the layer whose tree is the directory ``tree``, or None."""
        return layer_trees.get_by_tree(self._index, tree)

    def layers(self, diff_ids: Iterable[DiffId]) -> list[Layer] | None:
        """Return layers in the given order, or None if any of them is missing or damaged."""
        return layer_trees.get_all(self._index, diff_ids)

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write the uncompressed tar of a layer and return its summary.

        The caller must compare the summary's diff ID with ``diff_id``. Raises
        :class:`StoreError` if the layer is not in the store.
        """
        return layer_trees.write_tar(self._index, diff_id, write)

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the cache record of ``key``; None if it, or an object it needs, is gone."""
        index = self._index
        with index.reading():
            row = index.query_row("SELECT value, used FROM records WHERE key = ?", (key,))
            if row is None:
                return None
            index.pin("records", [key])
            index.record_use("records", key, row[1])
            needs = index.query("SELECT kind, need FROM record_needs WHERE key = ?", (key,))
            layers = [DiffId(need) for kind, need in needs if kind == "layers"]
            blobs = [Digest(need) for kind, need in needs if kind == "blobs"]
            if layer_trees.get_all(index, layers) is None:
                return None
            if any(blob_files.get(index, digest) is None for digest in blobs):
                return None
        value: dict[str, Any] = json.loads(row[0])
        return value

    def put_record(
        self,
        key: str,
        value: dict[str, Any],
        *,
        layers: Iterable[DiffId] = (),
        blobs: Iterable[Digest] = (),
    ) -> None:
        """Store ``value`` (plain JSON) under ``key``, replacing an earlier record.

        The record is valid only while all ``layers`` and ``blobs`` are in the store.
        """
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        needs = [("layers", layer) for layer in layers] + [("blobs", blob) for blob in blobs]
        with self._index.adding() as connection:
            self._index.pin("records", [key])
            connection.execute(
                "INSERT OR REPLACE INTO records (key, value, used) VALUES (?, ?, ?)",
                (key, text, self._index.clock()),
            )
            connection.execute("DELETE FROM record_needs WHERE key = ?", (key,))
            connection.executemany(
                "INSERT OR IGNORE INTO record_needs (key, kind, need) VALUES (?, ?, ?)",
                [(key, kind, need) for kind, need in needs],
            )

    def put_blob(self, data: bytes) -> Digest:
        """Store ``data`` and return its digest."""
        with self.blob_writer() as writer:
            writer.write(data)
            return writer.commit()

    def blob(self, digest: Digest) -> Path | None:
        """Return the file of a blob, which must not be modified; None if it is missing."""
        return blob_files.get(self._index, digest)

    def blob_writer(self) -> BlobWriter:
        """Return a context manager that takes a blob in chunks and stores it with ``commit``."""
        return BlobWriter(self._index)

    def compressed_blob(self, diff_id: DiffId, kind: str) -> CompressedLayer | None:
        """Return digest and size of a layer compressed as ``kind``, if known; not the blob."""
        with self._index.reading():
            row = self._index.query_row(
                "SELECT digest, size FROM compressed WHERE diff_id = ? AND kind = ?",
                (diff_id, kind),
            )
        return None if row is None else CompressedLayer(Digest(row[0]), row[1])

    def put_compressed_blob(self, diff_id: DiffId, kind: str, digest: Digest, size: int) -> None:
        """Store what :meth:`compressed_blob` returns."""
        with self._index.adding() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO compressed (diff_id, kind, digest, size)"
                " VALUES (?, ?, ?, ?)",
                (diff_id, kind, digest, size),
            )

    def put_image(
        self,
        config: bytes,
        layers: Sequence[DiffId],
        *,
        names: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        blobs: Sequence[Digest] = (),
    ) -> StoredImage:
        """Store an image; the digest of ``config`` is its identity.

        ``layers`` (lowest first) and ``blobs`` must be in the store. ``names`` move to this image
        if other images have them. If the image exists, its ``metadata`` is replaced and the names
        are added.
        """
        return stored_images.put(
            self._index, config, layers, names=names, metadata=metadata or {}, blobs=blobs
        )

    def image(self, name_or_digest: str) -> StoredImage | None:
        """Return the image with this name, config digest, or unambiguous digest prefix.

        Raises :class:`UsageError` if several images match the prefix.
        """
        return stored_images.get(self._index, name_or_digest)

    def images(self) -> list[StoredImage]:
        """Return all images, newest first."""
        return stored_images.list_all(self._index)

    def tag(self, name: str, name_or_digest: str) -> StoredImage | None:
        """Add a name to an image, moving it from another one; None if there is no such image."""
        return stored_images.tag(self._index, name, name_or_digest)

    def untag(self, name: str) -> bool:
        """Remove a name; return whether it existed."""
        return stored_images.untag(self._index, name)

    def remove_image(self, name_or_digest: str) -> bool:
        """Delete an image and all its names; return whether it existed. Layers stay until GC."""
        return stored_images.remove(self._index, name_or_digest)

    def collect(self, keep_bytes: int) -> GcResult:
        """Remove garbage, then evict the least recently used objects down to ``keep_bytes``.

        Objects needed by tagged images and live leases are kept regardless of ``keep_bytes``.
        Records and untagged images are removed with the first object they need. Trees of a rootless
        build can only be removed inside its user namespace.
        """
        from danlu.store.gc import collect  # loaded by no build

        return collect(self._index, keep_bytes)

    def plan_collection(self, keep_bytes: int) -> GcResult:
        """Return what :meth:`collect` would evict now, without changing anything."""
        from danlu.store.gc import plan_collection  # loaded by no build

        return plan_collection(self._index, keep_bytes)

    def check(self, repair: bool = False) -> list[StoreInconsistency]:
        """Verify all data in the store and return what is wrong.

        With ``repair``, damaged objects are removed together with the records and images that need
        them, and so is garbage. Nothing is removed if a layer or blob cannot be read, which is
        reported but is not damage. A store with a damaged index cannot be opened:
        :func:`danlu.store.index_check.check_store` checks the index first.
        """
        from danlu.store.fsck import check  # loaded by no build

        return check(self._index, repair=repair)

    def sync(self) -> None:
        """Flush the file system and mark everything written before as safely stored.

        Data that is not marked when the machine goes down is compared with its digest before its
        next use (docs/architecture/store.md). Meant to run in the background after a build.
        """
        index = self._index
        with index.reading():
            layers = index.query("SELECT diff_id, tree FROM layers WHERE boot = ?", (index.boot,))
            blobs = index.query("SELECT digest FROM blobs WHERE boot = ?", (index.boot,))
        if not layers and not blobs:
            return
        with index.translated_errors:
            _sync_filesystem(index.root)
        with index.adding() as connection:
            # Only the rows read above: objects added since then are not covered by this sync.
            connection.executemany(
                f"UPDATE layers SET boot = '{SYNCED}' WHERE diff_id = ? AND tree = ?", layers
            )
            connection.executemany(f"UPDATE blobs SET boot = '{SYNCED}' WHERE digest = ?", blobs)

    def usage(self) -> StoreUsage:
        """Return the number of bytes in the store, by kind."""
        index = self._index
        with index.reading():
            sums = {
                kind: int(index.query(f"SELECT coalesce(sum({size}), 0) FROM {kind}")[0][0])
                for kind, size in _ROW_SIZES.items()
            }
        return StoreUsage(**sums, index=sum(map(_file_size, index.root.glob(f"{INDEX}*"))))


def _file_size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _sync_filesystem(path: Path) -> None:
    import ctypes  # slow to load, and needed by the background maintenance only

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
