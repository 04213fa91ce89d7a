"""Compare two images: layers, configuration, files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import StoreError
from danlu.image.manage import ImageLayer, list_layers, parse_image_config
from danlu.oci.overlay import is_opaque, is_whiteout

if TYPE_CHECKING:
    from danlu.store import Store, StoredImage


class ImageDiff(msgspec.Struct, frozen=True):
    """The layers and the settings (name, before, after) in which two images differ."""

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
    """A path that was ``added``, ``removed`` or ``changed``; sizes are in bytes."""

    kind: str
    path: str
    before: int = 0
    after: int = 0


def compare_images(store: Store, old: StoredImage, new: StoredImage) -> ImageDiff:
    """Compare the layers and the configuration of two images."""
    before, after = list_layers(store, old), list_layers(store, new)
    left = {layer.diff_id for layer in before}
    right = {layer.diff_id for layer in after}
    common = left & right
    kept_before = [layer.diff_id for layer in before if layer.diff_id in common]
    kept_after = [layer.diff_id for layer in after if layer.diff_id in common]
    return ImageDiff(
        removed=tuple(layer for layer in before if layer.diff_id not in right),
        added=tuple(layer for layer in after if layer.diff_id not in left),
        common=len(common),
        settings=tuple(_compare_settings(_flatten_config(old), _flatten_config(new))),
        reordered=kept_before != kept_after,
    )


def _flatten_config(image: StoredImage) -> Mapping[str, str]:
    """Return the configuration without its history: ``Env PATH``, ``User``, ``Labels x``."""
    config = parse_image_config(image)
    values: dict[str, str] = {"platform": f"{config.os}/{config.architecture}"}
    run: dict[str, Any] = msgspec.to_builtins(config.config) if config.config else {}
    for name, value in run.items():
        if name == "Env":
            values |= {f"Env {k}": v for k, _, v in (variable.partition("=") for variable in value)}
        elif isinstance(value, dict):
            values |= {f"{name} {key}": str(entry or "") for key, entry in value.items()}
        else:
            values[name] = " ".join(value) if isinstance(value, list) else str(value)
    return values


def _compare_settings(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name, ""), after.get(name, "")


def compare_files(store: Store, old: StoredImage, new: StoredImage) -> Iterator[FileChange]:
    """Yield the paths in which the file systems of two images differ, sorted.

    Regular files of equal size and mode are compared by content. Raises :class:`StoreError` if a
    layer is missing.
    """
    before = merge_trees(_layer_trees(store, old.layers))
    after = merge_trees(_layer_trees(store, new.layers))
    for path in sorted(before.keys() | after.keys()):
        left, right = before.get(path), after.get(path)
        if left == right:
            continue
        if left is None and right is not None:
            yield FileChange("added", path, 0, _file_size(right))
        elif right is None and left is not None:
            yield FileChange("removed", path, _file_size(left), 0)
        elif left is not None and right is not None and not _is_same_file(left, right):
            yield FileChange("changed", path, _file_size(left), _file_size(right))


def _layer_trees(store: Store, layers: Sequence[Any]) -> list[Path]:
    found = [store.layer(diff_id) for diff_id in layers]
    if None in found:
        raise StoreError("layers of the image are missing from the store")
    return [layer.tree for layer in found if layer is not None]


def merge_trees(trees: Sequence[Path]) -> dict[str, Path]:
    """Map each path of the merged file system to its place on disk, by overlayfs's rules."""
    merged: dict[str, Path] = {}
    for tree in trees:
        for path, place, kind in iterate_entries(tree):
            if kind in ("whiteout", "opaque"):
                _apply_whiteout(merged, path, itself=kind == "whiteout")
            if kind != "whiteout":
                merged[path] = place
    return merged


def _apply_whiteout(merged: dict[str, Path], path: str, *, itself: bool) -> None:
    below = f"{path}/"
    for hidden in [
        hidden for hidden in merged if hidden.startswith(below) or (itself and hidden == path)
    ]:
        del merged[hidden]


def iterate_entries(tree: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each path of a layer with its place on disk and ``entry``, ``whiteout`` or ``opaque``.

    An opaque directory is an entry too.
    """
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


def _file_size(place: Path) -> int:
    status = place.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _is_same_file(left: Path, right: Path) -> bool:
    status, other = left.lstat(), right.lstat()
    if (status.st_mode, status.st_uid, status.st_gid) != (
        other.st_mode,
        other.st_uid,
        other.st_gid,
    ):
        return False
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(left) == os.readlink(right)
    if not stat.S_ISREG(status.st_mode):
        return True
    return status.st_size == other.st_size and _has_same_content(left, right)


def _has_same_content(left: Path, right: Path) -> bool:
    with left.open("rb") as left_file, right.open("rb") as other:
        while True:
            piece = left_file.read(1 << 20)
            if piece != other.read(1 << 20):
                return False
            if not piece:
                return True
