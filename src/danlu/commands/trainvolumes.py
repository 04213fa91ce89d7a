"""Directories and files of this machine that an order shows to its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.commands.trainorder import TrainOrder

__all__ = ["mounted"]

_MODES = ("ro", "rw")


def mounted(order: TrainOrder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ``volumes`` of a pod and the ``volumeMounts`` of its container.

    A source that is not absolute is one of the directory where the order was given. Raises
    :class:`UsageError` for what is no volume.
    """
    parts = [_parts(text, order.directory) for text in order.volumes]
    names = [f"volume-{number}" for number in range(len(parts))]
    volumes = [
        {"name": name, "hostPath": {"path": str(source)}}
        for name, (source, _, _) in zip(names, parts, strict=True)
    ]
    mounts = [
        {"name": name, "mountPath": target, **_mode(readonly)}
        for name, (_, target, readonly) in zip(names, parts, strict=True)
    ]
    return volumes, mounts


def _parts(text: str, directory: Path) -> tuple[Path, str, bool]:
    words = text.split(":")
    mode = words.pop() if len(words) == 3 else "rw"
    if len(words) != 2 or mode not in _MODES or not words[0] or not words[1].startswith("/"):
        hint = "volumes look like SOURCE:/TARGET or SOURCE:/TARGET:ro"
        raise UsageError(f"{text!r} is not a volume", hint=hint)
    source = directory.absolute() / Path(words[0]).expanduser()
    return source, words[1], mode == "ro"


def _mode(readonly: bool) -> Mapping[str, bool]:
    return {"readOnly": True} if readonly else {}
