"""Find copies that would replace a link or a directory of the image, which breaks it.

A copy is a layer that is made without the image below it. ``/bin`` of a Debian system is a link to
``usr/bin``: a layer with ``/bin/tool`` has a directory ``/bin``, which would hide the link, and the
shell with it. Only directories that both have are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from danlu.errors import UsageError
from danlu.sandbox.layer_view import LayerView
from danlu.store import Layer


def reject_replacements(layers: Sequence[Layer], below: Sequence[Layer]) -> None:
    """Raise :class:`UsageError` if a path of ``layers`` replaces one of another kind in ``below``.

    Files, and links to files, may be replaced by files and links; directories are merged.
    """
    view = LayerView([layer.tree for layer in below])
    pending: list[tuple[tuple[str, ...], str]] = [((), str(layer.tree)) for layer in layers]
    while pending:
        parts, directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                path = (*parts, entry.name)
                existing = view.entry(path)
                if existing is None:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if os.path.islink(existing) or not os.path.isdir(existing):
                        raise _make_error(path, existing, view)
                    pending.append((path, entry.path))
                elif view.directories(view.resolve("/".join(path))):
                    raise _make_error(path, existing, view)


def _make_error(path: tuple[str, ...], existing: str, view: LayerView) -> UsageError:
    name = "/" + "/".join(path)
    if os.path.islink(existing):
        resolved = "/" + "/".join(view.resolve(name))
        return UsageError(
            f"the copy would replace {name}, which is a link to {os.readlink(existing)} in the"
            " image",
            hint=f"copy to {resolved}/ instead of {name}",
        )
    if os.path.isdir(existing):
        return UsageError(
            f"the copy would replace the directory {name} of the image with a file",
            hint="end the target with / to copy into the directory",
        )
    return UsageError(
        f"the copy would replace the file {name} of the image with a directory",
        hint="choose another target",
    )
