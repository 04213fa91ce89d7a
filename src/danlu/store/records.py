"""Cache records: what a key once gave, with the layers and blobs that the answer stands on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from danlu.oci.digest import DiffId, Digest
from danlu.store import blobs as blob_files
from danlu.store import layers as layer_trees
from danlu.store.core import Core

__all__ = ["get", "put"]


def get(core: Core, key: str) -> dict[str, Any] | None:
    """The record's value; None where it is absent or something it needs is gone."""
    with core.reading():
        row = core.row("SELECT value, used FROM records WHERE key = ?", (key,))
        if row is None:
            return None
        core.pin("records", [key])
        core.used("records", key, row[1])
        needs = core.rows("SELECT kind, need FROM record_needs WHERE key = ?", (key,))
        layers = [DiffId(need) for kind, need in needs if kind == "layers"]
        blobs = [Digest(need) for kind, need in needs if kind == "blobs"]
        if layer_trees.intact(core, layers) is None:
            return None
        if any(blob_files.get(core, digest) is None for digest in blobs):
            return None
    value: dict[str, Any] = json.loads(row[0])
    return value


def put(
    core: Core,
    key: str,
    value: dict[str, Any],
    *,
    layers: Iterable[DiffId],
    blobs: Iterable[Digest],
) -> None:
    """Write the record, in place of one of the same key."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    needs = [("layers", one) for one in layers] + [("blobs", one) for one in blobs]
    with core.writing() as connection:
        core.pin("records", [key])
        connection.execute(
            "INSERT OR REPLACE INTO records (key, value, used) VALUES (?, ?, ?)",
            (key, text, core.clock()),
        )
        connection.execute("DELETE FROM record_needs WHERE key = ?", (key,))
        connection.executemany(
            "INSERT OR IGNORE INTO record_needs (key, kind, need) VALUES (?, ?, ?)",
            [(key, kind, need) for kind, need in needs],
        )
