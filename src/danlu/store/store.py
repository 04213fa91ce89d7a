"""The store: one directory a user, shared by all projects and by processes at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.oci.digest import DiffId, Digest
from danlu.store import blobs, images, layers, leases, records
from danlu.store.blobs import BlobWriter
from danlu.store.core import Core
from danlu.store.faults import Faults, translate
from danlu.store.leases import Lease
from danlu.store.staging import new_directory, sweep
from danlu.store.types import Collected, Compressed, Finding, Layer, StoredImage, Usage
from danlu.util.files import remove_tree
from danlu.util.space import is_full

if TYPE_CHECKING:
    from danlu.oci.tar import LayerSummary, Normalise, Recipe

__all__ = ["Store"]


class Store:
    """Blobs, unpacked layers, cache records and images below :attr:`root`.

    Methods may be called from any thread, and by any number of processes at once; none may be
    used across ``fork``. A failure of disk or index raises :class:`StoreError`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.root = core.root
        self._swept = False

    @classmethod
    def open(cls, root: Path, *, clock: Callable[[], float] = time.time) -> Store:
        """The store at ``root``, made if absent; takes a few milliseconds.

        Raises :class:`StoreError` where it was written by a newer danlu or cannot be used.
        """
        with Faults(root):
            return cls(Core(root, clock=clock))

    def close(self) -> None:
        """Let go of the store; what was put in stays."""
        self._core.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A new empty directory of the caller's own on the store's file system, removed at exit.

        A full disk inside the block is raised as :class:`StoreError`.
        """
        core = self._core
        with core.faults:
            self._sweep_once()
            path, descriptor = new_directory(core.staging)
        try:
            yield path
        except OSError as error:
            clear = self._full(error)
            if clear is None:
                raise
            raise clear from error
        finally:
            try:
                with core.faults:
                    remove_tree(path)
            finally:
                os.close(descriptor)

    def _sweep_once(self) -> None:
        """Remove what builds killed long ago left; recent leftovers wait for :meth:`collect`.

        So the build after a kill is not slowed, and a machine where nobody collects stays clean.
        """
        with self._core.lock:
            if not self._swept:
                self._swept = True
                sweep(self._core.staging, older_than=3600)

    def _full(self, error: OSError) -> BaseException | None:
        if not is_full(error):
            return None
        named = error.filename
        if isinstance(named, str) and not Path(named).is_relative_to(self.root):
            return None
        return translate(error, self.root)

    def reading(self) -> AbstractContextManager[None]:
        """For many short reads one after the other: waits for a collection once and not for each.

        No other thread of this process reads or writes meanwhile, and nothing is collected.
        """
        return self._core.reading()

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Keep from collection what this store object makes or reads while the block runs.

        The kernel ends the lease with the process. Leases may nest and overlap; what they protect
        is kept until the last one of this object ends.
        """
        with leases.held(self._core) as lease:
            yield lease

    def commit_layer(
        self,
        staged: Path,
        summary: LayerSummary,
        *,
        created_by: str,
        normalise: Normalise | Recipe | None = None,
    ) -> Layer:
        """Make the directory ``staged`` (below a :meth:`staging`) the tree of a layer, at once.

        ``summary`` is that of ``write_layer(staged, normalise=normalise)``, which the caller has
        computed; ``normalise`` is kept so that the layer can be checked later. For a stranger's
        tar it is the recipe that writes it again. Where the layer is already there, ``staged`` is
        removed and that layer returned.
        """
        return layers.commit(
            self._core, staged, summary, created_by=created_by, normalise=normalise
        )

    def layer(self, diff_id: DiffId) -> Layer | None:
        """The layer of that digest, if it is here and whole."""
        return layers.get(self._core, diff_id)

    def layers(self, diff_ids: Iterable[DiffId]) -> list[Layer] | None:
        """The layers of these digests in their order; None unless all are here and whole."""
        return layers.intact(self._core, diff_ids)

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write a layer's uncompressed tar as it was hashed; gives what was written.

        Raises :class:`StoreError` where the layer is not here. Whether the summary's diff id is
        still the layer's is for the caller to check.
        """
        return layers.write_tar(self._core, diff_id, write)

    def record(self, key: str) -> dict[str, Any] | None:
        """What was put under ``key``; None where that, or a layer or blob it needs, is gone."""
        return records.get(self._core, key)

    def put_record(
        self,
        key: str,
        value: dict[str, Any],
        *,
        layers: Iterable[DiffId] = (),
        blobs: Iterable[Digest] = (),
    ) -> None:
        """Keep ``value`` (plain JSON) under ``key``; it stands on ``layers`` and ``blobs``."""
        records.put(self._core, key, value, layers=layers, blobs=blobs)

    def put_blob(self, data: bytes) -> Digest:
        """Keep ``data``; gives its digest."""
        with self.blob_writer() as writer:
            writer.write(data)
            return writer.commit()

    def blob(self, digest: Digest) -> Path | None:
        """The file that holds a blob, to be read only; None if absent."""
        return blobs.get(self._core, digest)

    def blob_writer(self) -> BlobWriter:
        """A context that takes a blob in pieces and puts it in by ``commit(expected)``."""
        return BlobWriter(self._core)

    def compressed(self, diff_id: DiffId, kind: str) -> Compressed | None:
        """Digest and size of a layer compressed as ``kind``, if once made; not the blob itself."""
        core = self._core
        with core.reading():
            row = core.row(
                "SELECT digest, size FROM compressed WHERE diff_id = ? AND kind = ?",
                (diff_id, kind),
            )
        return None if row is None else Compressed(Digest(row[0]), row[1])

    def put_compressed(self, diff_id: DiffId, kind: str, digest: Digest, size: int) -> None:
        """Remember what :meth:`compressed` answers."""
        with self._core.writing() as connection:
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
        """Keep an image; its identity is the digest of ``config``.

        ``layers`` (lowest first) and ``blobs`` must be in the store. ``names`` are taken from
        other images if need be. Putting an image again replaces its ``metadata``, and adds names.
        """
        return images.put(
            self._core, config, layers, names=names, metadata=metadata or {}, blobs=blobs
        )

    def image(self, name_or_digest: str) -> StoredImage | None:
        """The image of that name, config digest, or unambiguous beginning of a digest.

        Raises :class:`UsageError` where the beginning is that of several images.
        """
        return images.get(self._core, name_or_digest)

    def images(self) -> list[StoredImage]:
        """All images, the youngest first."""
        return images.every(self._core)

    def tag(self, name: str, name_or_digest: str) -> StoredImage | None:
        """Give an image a further name, taken from another image if need be; None if no image."""
        return images.tag(self._core, name, name_or_digest)

    def untag(self, name: str) -> bool:
        """Take a name away; whether it was there."""
        return images.untag(self._core, name)

    def remove_image(self, name_or_digest: str) -> bool:
        """Forget an image and all its names; whether it was there. Layers stay until collected."""
        return images.remove(self._core, name_or_digest)

    def collect(self, keep_bytes: int) -> Collected:
        """Remove garbage, then what was not used for longest until ``keep_bytes`` are left.

        What a named image or a living lease needs stays, whatever ``keep_bytes`` says. Records
        and nameless images go with the first layer they need. Trees made by a rootless build can
        only be removed inside its user namespace.
        """
        from danlu.store import collect as _collect

        return _collect.collect(self._core, keep_bytes)

    def check(self, repair: bool = False) -> list[Finding]:
        """Read everything again and tell what is not as it was put in.

        ``repair`` removes what is broken, with the records and images that need it, and garbage.
        A store whose index is damaged cannot be open: :func:`check_store` looks at that too.
        """
        from danlu.store import check as _check

        return _check.check(self._core, repair=repair)

    def settle(self) -> None:
        """Wait until all that was put in has reached the disk; see docs/architecture/store.md.

        What is not settled when the machine goes down is read again and compared with its digest
        before it is used for the first time. Meant for the background after a build.
        """
        from danlu.store import upkeep

        upkeep.settle(self._core)

    def usage(self) -> Usage:
        """How many bytes the store holds, by kind."""
        from danlu.store import upkeep

        return upkeep.usage(self._core)
