"""Write files into a layer."""

from __future__ import annotations

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, write_entry
from danlu.graph.ops import Files
from danlu.oci.tar import NormalizeOptions
from danlu.store import Layer


async def execute(op: Files, context: OpContext) -> list[Layer]:
    """Return one layer with the entries of ``op``; the epoch is their modification time."""
    with context.store.staging() as staged:
        for entry in sorted(op.entries, key=lambda entry: entry.path):
            write_entry(staged, entry)
        made_by = "danlu: " + ", ".join(entry.path for entry in op.entries[:4])
        return await commit_tree(context, staged, NormalizeOptions(mtime=op.epoch), made_by)
