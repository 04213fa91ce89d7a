"""``danlu image diff``: what two images have that the other has not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.commands.images import ImageLayer, layers_of, parsed_config
from danlu.errors import StoreError
from danlu.oci.overlay import is_opaque, is_whiteout

if TYPE_CHECKING:
    from danlu.store import Store, StoredImage

__all__ = ["FileChange", "ImageDiff", "compare", "compare_files"]


class ImageDiff(msgspec.Struct, frozen=True):
    """Layers that only one of two images has, and settings (name, before, after) that differ."""

    removed: tuple[ImageLayer, ...]
    added: tuple[ImageLayer, ...]
    common: int
    settings: tuple[tuple[str, str, str], ...]
    reordered: bool = False

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.removed or self.added or self.settings or self.reordered)


class FileChange(msgspec.Struct, frozen=True):
    """A path that differs: ``added``, ``removed`` or ``changed``; sizes in bytes."""

    kind: str
    path: str
    before: int = 0
    after: int = 0


def compare(store: Store, old: StoredImage, new: StoredImage) -> ImageDiff:
    """Layers and configuration of two images, compared."""
    before, after = layers_of(store, old), layers_of(store, new)
    left = {one.diff_id for one in before}
    right = {one.diff_id for one in after}
    common = left & right
    kept_before = [one.diff_id for one in before if one.diff_id in common]
    kept_after = [one.diff_id for one in after if one.diff_id in common]
    return ImageDiff(
        removed=tuple(one for one in before if one.diff_id not in right),
        added=tuple(one for one in after if one.diff_id not in left),
        common=len(common),
        settings=tuple(_settings(_flat(old), _flat(new))),
        reordered=kept_before != kept_after,
    )


def _flat(image: StoredImage) -> Mapping[str, str]:
    """The configuration as lines: ``Env PATH``, ``User``, ``Labels x``; history is left out."""
    import msgspec

    config = parsed_config(image)
    values: dict[str, str] = {"platform": f"{config.os}/{config.architecture}"}
    run: dict[str, Any] = msgspec.to_builtins(config.config) if config.config else {}
    for name, value in run.items():
        if name == "Env":
            values |= {f"Env {k}": v for k, _, v in (one.partition("=") for one in value)}
        elif isinstance(value, dict):
            values |= {f"{name} {key}": str(one or "") for key, one in value.items()}
        else:
            values[name] = " ".join(value) if isinstance(value, list) else str(value)
    return values


def _settings(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name, ""), after.get(name, "")


def compare_files(store: Store, old: StoredImage, new: StoredImage) -> Iterator[FileChange]:
    """Paths that differ between two images' file systems, sorted; only layers that differ count.

    Regular files of equal size and mode are compared by content. Raises :class:`StoreError`
    where a layer is gone.
    """
    before = _merged(_trees(store, old.layers))
    after = _merged(_trees(store, new.layers))
    for path in sorted(before.keys() | after.keys()):
        left, right = before.get(path), after.get(path)
        if left == right:
            continue
        if left is None and right is not None:
            yield FileChange("added", path, 0, _size(right))
        elif right is None and left is not None:
            yield FileChange("removed", path, _size(left), 0)
        elif left is not None and right is not None and not _equal(left, right):
            yield FileChange("changed", path, _size(left), _size(right))


def _trees(store: Store, layers: Sequence[Any]) -> list[Path]:
    found = [store.layer(diff_id) for diff_id in layers]
    if None in found:
        raise StoreError("layers of the image are gone from the store")
    return [layer.tree for layer in found if layer is not None]


def _merged(trees: Sequence[Path]) -> dict[str, Path]:
    """Where each path of the merged file system lies on disk (overlayfs's rules)."""
    merged: dict[str, Path] = {}
    for tree in trees:
        for path, place, kind in _walk(tree):
            if kind in ("whiteout", "opaque"):
                _hide(merged, path, itself=kind == "whiteout")
            if kind != "whiteout":
                merged[path] = place
    return merged


def _hide(merged: dict[str, Path], path: str, *, itself: bool) -> None:
    below = f"{path}/"
    for one in [one for one in merged if one.startswith(below) or (itself and one == path)]:
        del merged[one]


def _walk(tree: Path) -> Iterator[tuple[str, Path, str]]:
    for root, directories, files in os.walk(tree):
        for name in sorted([*directories, *files]):
            place = Path(root, name)
            status = place.lstat()
            path = f"/{place.relative_to(tree)}"
            if is_whiteout(str(place), status):
                yield path, place, "whiteout"
            elif stat.S_ISDIR(status.st_mode) and is_opaque(str(place)):
                yield path, place, "opaque"
            else:
                yield path, place, "entry"


def _size(place: Path) -> int:
    status = place.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _equal(left: Path, right: Path) -> bool:
    one, other = left.lstat(), right.lstat()
    if (one.st_mode, one.st_uid, one.st_gid) != (other.st_mode, other.st_uid, other.st_gid):
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(left) == os.readlink(right)
    if not stat.S_ISREG(one.st_mode):
        return True
    return one.st_size == other.st_size and _same_bytes(left, right)


def _same_bytes(left: Path, right: Path) -> bool:
    with left.open("rb") as one, right.open("rb") as other:
        while True:
            piece = one.read(1 << 20)
            if piece != other.read(1 << 20):
                return False
            if not piece:
                return True
