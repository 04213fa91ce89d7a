"""Images and their names: an image is its config, and refers to layers in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from danlu.errors import StoreError, UsageError
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.store.index import StoreIndex
from danlu.store.types import StoredImage

#: Shorter digest prefixes are taken for (unknown) names.
_MIN_PREFIX_LENGTH = 6


def put(
    index: StoreIndex,
    config: bytes,
    layers: Sequence[DiffId],
    *,
    names: Sequence[str],
    metadata: Mapping[str, Any],
    blobs: Sequence[Digest],
) -> StoredImage:
    """Store the image and name it; see :meth:`Store.put_image`."""
    digest = sha256(config)
    now = index.clock()
    # Naming may move a name away from another image, which must change the epoch.
    with index.writing() if names else index.adding() as connection:
        index.pin("images", [digest])
        _require_present(index, "layers", "diff_id", layers)
        _require_present(index, "blobs", "digest", blobs)
        connection.execute(
            "INSERT INTO images (digest, config, metadata, created, used) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (digest) DO UPDATE SET metadata = excluded.metadata,"
            " used = excluded.used",
            (digest, config, json.dumps(dict(metadata), sort_keys=True), now, now),
        )
        connection.execute("DELETE FROM image_needs WHERE image = ?", (digest,))
        needs: list[tuple[str, str, int, str]] = []
        needs += [(digest, "layers", position, layer) for position, layer in enumerate(layers)]
        needs += [(digest, "blobs", position, blob) for position, blob in enumerate(blobs)]
        connection.executemany("INSERT INTO image_needs VALUES (?, ?, ?, ?)", needs)
        connection.executemany(
            "INSERT OR REPLACE INTO names (name, image) VALUES (?, ?)",
            [(name, digest) for name in names],
        )
        return _read_image(index, digest)


def _require_present(index: StoreIndex, table: str, identity: str, wanted: Iterable[str]) -> None:
    for need in wanted:
        if index.query_row(f"SELECT 1 FROM {table} WHERE {identity} = ?", (need,)) is None:
            raise StoreError(f"cannot store the image: {need} is not in the store")


def _read_image(index: StoreIndex, digest: str) -> StoredImage:
    row = index.query_row(
        "SELECT config, metadata, created, used FROM images WHERE digest = ?", (digest,)
    )
    assert row is not None
    names = index.query("SELECT name FROM names WHERE image = ? ORDER BY name", (digest,))
    needs = index.query(
        "SELECT kind, need FROM image_needs WHERE image = ? ORDER BY kind, position", (digest,)
    )
    return StoredImage(
        digest=Digest(digest),
        config=row[0],
        layers=tuple(DiffId(need) for kind, need in needs if kind == "layers"),
        names=tuple(name for (name,) in names),
        metadata=json.loads(row[1]),
        blobs=tuple(Digest(need) for kind, need in needs if kind == "blobs"),
        created=row[2],
        used=row[3],
    )


def _find_digest(index: StoreIndex, name_or_digest: str) -> str | None:
    """Return the digest for a name, a digest or a digest prefix."""
    row = index.query_row("SELECT image FROM names WHERE name = ?", (name_or_digest,))
    if row is not None:
        return str(row[0])
    digits = name_or_digest.removeprefix("sha256:").lower()
    if len(digits) < _MIN_PREFIX_LENGTH or digits.strip("0123456789abcdef"):
        return None
    matches = index.query(
        "SELECT digest FROM images WHERE digest BETWEEN ? AND ? LIMIT 2",
        (f"sha256:{digits}", f"sha256:{digits}g"),
    )
    if len(matches) > 1:
        raise UsageError(f"more than one image starts with {digits}", hint="use more digits")
    return str(matches[0][0]) if matches else None


def get(index: StoreIndex, name_or_digest: str) -> StoredImage | None:
    """Return the image with this name, digest, or digest prefix of at least 6 digits."""
    with index.reading():
        digest = _find_digest(index, name_or_digest)
        if digest is None:
            return None
        index.pin("images", [digest])
        image = _read_image(index, digest)
        index.record_use("images", digest, image.used)
        return image


def list_all(index: StoreIndex) -> list[StoredImage]:
    """Return all images, newest first."""
    with index.reading():
        rows = index.query("SELECT digest FROM images ORDER BY created DESC, digest")
        return [_read_image(index, digest) for (digest,) in rows]


def tag(index: StoreIndex, name: str, name_or_digest: str) -> StoredImage | None:
    """Add a name to an image, moving it from another one; None if there is no such image."""
    with index.writing() as connection:
        digest = _find_digest(index, name_or_digest)
        if digest is None:
            return None
        connection.execute(
            "INSERT OR REPLACE INTO names (name, image) VALUES (?, ?)", (name, digest)
        )
        return _read_image(index, digest)


def untag(index: StoreIndex, name: str) -> bool:
    """Remove a name; return whether it existed."""
    with index.writing() as connection:
        return connection.execute("DELETE FROM names WHERE name = ?", (name,)).rowcount > 0


def remove(index: StoreIndex, name_or_digest: str) -> bool:
    """Delete an image and all its names; return whether it existed. Layers stay until GC."""
    with index.writing():
        digest = _find_digest(index, name_or_digest)
        if digest is None:
            return False
        delete_images(index, [digest])
        return True


def delete_images(index: StoreIndex, digests: Iterable[str]) -> None:
    """Delete images and their names; must run inside a transaction."""
    for digest in digests:
        index.connection.execute("DELETE FROM names WHERE image = ?", (digest,))
        index.connection.execute("DELETE FROM image_needs WHERE image = ?", (digest,))
        index.connection.execute("DELETE FROM images WHERE digest = ?", (digest,))
