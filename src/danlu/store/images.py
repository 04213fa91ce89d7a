"""Images and their names: an image is its config, and stands on layers of the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from danlu.errors import StoreError, UsageError
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.store.core import Core
from danlu.store.types import StoredImage

__all__ = ["every", "get", "put", "remove", "tag", "untag"]

#: Fewer digits than this are a name that nobody gave.
_SHORTEST_PREFIX = 6


def put(
    core: Core,
    config: bytes,
    layers: Sequence[DiffId],
    *,
    names: Sequence[str],
    metadata: Mapping[str, Any],
    blobs: Sequence[Digest],
) -> StoredImage:
    """Write the image and give it names; see :meth:`Store.put_image`."""
    digest = sha256(config)
    now = core.clock()
    with core.writing() as connection:
        core.pin("images", [digest])
        _require(core, "layers", "diff_id", layers)
        _require(core, "blobs", "digest", blobs)
        connection.execute(
            "INSERT INTO images (digest, config, metadata, created, used) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (digest) DO UPDATE SET metadata = excluded.metadata,"
            " used = excluded.used",
            (digest, config, json.dumps(dict(metadata), sort_keys=True), now, now),
        )
        connection.execute("DELETE FROM image_needs WHERE image = ?", (digest,))
        needs: list[tuple[str, str, int, str]] = []
        needs += [(digest, "layers", place, one) for place, one in enumerate(layers)]
        needs += [(digest, "blobs", place, one) for place, one in enumerate(blobs)]
        connection.executemany("INSERT INTO image_needs VALUES (?, ?, ?, ?)", needs)
        connection.executemany(
            "INSERT OR REPLACE INTO names (name, image) VALUES (?, ?)",
            [(name, digest) for name in names],
        )
        return _read(core, digest)


def _require(core: Core, table: str, identity: str, wanted: Iterable[str]) -> None:
    for one in wanted:
        if core.row(f"SELECT 1 FROM {table} WHERE {identity} = ?", (one,)) is None:
            raise StoreError(f"an image cannot stand on {one}: the store has no such thing")


def _read(core: Core, digest: str) -> StoredImage:
    row = core.row("SELECT config, metadata, created, used FROM images WHERE digest = ?", (digest,))
    assert row is not None
    names = core.rows("SELECT name FROM names WHERE image = ? ORDER BY name", (digest,))
    needs = core.rows(
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


def _find(core: Core, name_or_digest: str) -> str | None:
    """The digest that a name, a digest or the beginning of one stands for."""
    row = core.row("SELECT image FROM names WHERE name = ?", (name_or_digest,))
    if row is not None:
        return str(row[0])
    digits = name_or_digest.removeprefix("sha256:").lower()
    if len(digits) < _SHORTEST_PREFIX or digits.strip("0123456789abcdef"):
        return None
    found = core.rows(
        "SELECT digest FROM images WHERE digest BETWEEN ? AND ? LIMIT 2",
        (f"sha256:{digits}", f"sha256:{digits}g"),
    )
    if len(found) > 1:
        raise UsageError(f"more than one image begins with {digits}", hint="give more digits")
    return str(found[0][0]) if found else None


def get(core: Core, name_or_digest: str) -> StoredImage | None:
    """The image of that name, digest, or beginning (6 digits at least) of a digest."""
    with core.reading():
        digest = _find(core, name_or_digest)
        if digest is None:
            return None
        core.pin("images", [digest])
        image = _read(core, digest)
        core.used("images", digest, image.used)
        return image


def every(core: Core) -> list[StoredImage]:
    """All images, the youngest first."""
    with core.reading():
        found = core.rows("SELECT digest FROM images ORDER BY created DESC, digest")
        return [_read(core, digest) for (digest,) in found]


def tag(core: Core, name: str, name_or_digest: str) -> StoredImage | None:
    """Give an image a further name, taken from another image if need be; None if no image."""
    with core.writing() as connection:
        digest = _find(core, name_or_digest)
        if digest is None:
            return None
        connection.execute(
            "INSERT OR REPLACE INTO names (name, image) VALUES (?, ?)", (name, digest)
        )
        return _read(core, digest)


def untag(core: Core, name: str) -> bool:
    """Take a name away; whether it was there."""
    with core.writing() as connection:
        return connection.execute("DELETE FROM names WHERE name = ?", (name,)).rowcount > 0


def remove(core: Core, name_or_digest: str) -> bool:
    """Forget an image and all its names; whether it was there. Layers stay until collected."""
    with core.writing():
        digest = _find(core, name_or_digest)
        if digest is None:
            return False
        forget(core, [digest])
        return True


def forget(core: Core, digests: Iterable[str]) -> None:
    """Delete images and their names, inside a transaction."""
    for digest in digests:
        core.connection.execute("DELETE FROM names WHERE image = ?", (digest,))
        core.connection.execute("DELETE FROM image_needs WHERE image = ?", (digest,))
        core.connection.execute("DELETE FROM images WHERE digest = ?", (digest,))
