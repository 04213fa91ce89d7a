"""Make the dynamic loader's cache for the libraries of a stack."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, write_entry
from danlu.graph.ops import FileEntry, LoaderCache
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import SYSTEM_PATH, ProcessSpec, RootFilesystem
from danlu.store import Layer

#: The number of output lines in the error if ldconfig fails.
_LAST_LINES = 20


async def execute(op: LoaderCache, context: OpContext) -> list[Layer]:
    """Return one layer with the entries of ``op`` and the cache that the stack's ldconfig makes.

    Raises :class:`StepFailed` if the stack has no ldconfig.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with context.store.staging() as upper:
        root = RootFilesystem(tuple(layer.tree for layer in context.below), upper)
        for entry in (*op.entries, *_make_linker_names(LayerView(root.layers), op.linked)):
            write_entry(upper, entry)
        process = ProcessSpec(("ldconfig",), {"PATH": SYSTEM_PATH}, "/")
        code = await context.sandbox().run(process, root, on_line=last.append)
        if code != 0:
            raise context.step_error(
                f"ldconfig ended with exit code {code}", code=code, output=last
            )
        await context.run_sync(finalize_upper, upper, op.epoch, below=root.layers)
        return await commit_tree(
            context, upper, NormalizeOptions(mtime=op.epoch), "danlu: ldconfig"
        )


def _make_linker_names(view: LayerView, directories: Sequence[str]) -> Iterator[FileEntry]:
    """Yield a link ``libcudart.so`` for each ``libcudart.so.12`` that has none."""
    for directory in directories:
        found = view.directories(view.resolve(directory))
        names = sorted({name for path in found for name in os.listdir(path)})
        seen = set(names)
        for name in names:
            match = re.fullmatch(r"(lib[\w.+-]+?\.so)\.[0-9.]+", name)
            if match and match[1] not in seen:
                seen.add(match[1])
                yield FileEntry(f"{directory}/{match[1]}", "link", target=name)
