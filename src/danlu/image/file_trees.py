"""Write the files of an image without its layers: as one archive, or for a Dockerfile.

Tars are rewritten entry by entry, because neither form knows whiteouts: in an archive of the whole
root nothing is deleted, and a Dockerfile deletes with ``RUN rm``.
"""

from __future__ import annotations

import json
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from danlu.errors import UsageError
from danlu.image.diff import iterate_entries, merge_trees
from danlu.image.manage import parse_image_config
from danlu.sandbox.launcher.image_root import find_layers
from danlu.util.files import write_atomic

if TYPE_CHECKING:
    from danlu.oci.types import RunConfig
    from danlu.store import Layer, Store, StoredImage

#: Paths in one RUN instruction, far below the limit of a command line.
_MAX_PATHS_REMOVED = 500


def write_rootfs(store: Store, image: StoredImage, write: Callable[[bytes], object]) -> None:
    """Write the merged files of an image as one uncompressed tar.

    Directories come first, so that each exists before its content. Raises :class:`StoreError` if a
    layer is missing.
    """
    layers = find_layers(store, image)
    merged = merge_trees([layer.tree for layer in layers])
    visible: dict[Path, set[str]] = {layer.tree: set() for layer in layers}
    for path, place in merged.items():
        visible[_find_tree(visible, place)].add(path.lstrip("/"))
    stream = cast("tarfile._Fileobj", _WriteStream(write))
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as output:
        for wants_directories in (True, False):
            for layer in layers:
                with _open_layer(store, layer) as source:
                    _copy_entries(
                        source,
                        output,
                        layer.tree,
                        visible[layer.tree],
                        wants_directories=wants_directories,
                    )


def write_dockerfile(store: Store, image: StoredImage, directory: Path) -> None:
    """Write a Dockerfile and the archives that it adds, one for each layer of the image.

    Docker, BuildKit and Buildah build the same files from it. Archives that an interrupted call has
    written are used. Raises :class:`UsageError` if ``directory`` contains something else.
    """
    names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if names - {"layers"} and not (directory / "Dockerfile").is_file():
        raise UsageError(
            f"{directory} is not empty and has no Dockerfile", hint="choose an empty directory"
        )
    (directory / "layers").mkdir(parents=True, exist_ok=True)
    lines = ["# Written by danlu. Build it with: docker build .", "FROM scratch"]
    for layer in find_layers(store, image):
        name = f"layers/{layer.diff_id[7:]}.tar"
        lines += [f"# {' '.join(layer.created_by.split())}", *_render_removals(layer.tree)]
        if not (directory / name).exists():
            _write_layer_archive(store, layer, directory / name)
        lines.append(f"ADD {name} /")
    lines += _render_config(parse_image_config(image).config)
    write_atomic(directory / "Dockerfile", "".join(f"{line}\n" for line in lines).encode())


def _find_tree(trees: dict[Path, set[str]], place: Path) -> Path:
    return next(parent for parent in place.parents if parent in trees)


class _WriteStream:
    """A writable file object around a function."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)


@contextmanager
def _open_layer(store: Store, layer: Layer) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryFile(dir=store.root / "tmp") as file:
        store.write_tar(layer.diff_id, file.write)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as source:
            yield source


def _copy_entries(
    source: tarfile.TarFile,
    output: tarfile.TarFile,
    tree: Path,
    visible: set[str],
    *,
    wants_directories: bool,
) -> None:
    """Copy the entries that are visible in the image, either directories or all others."""
    moved: dict[str, str] = {}
    for member in source:
        name = member.name.rstrip("/")
        if member.isdir() != wants_directories or name not in visible:
            continue
        if member.islnk() and member.linkname not in visible:
            # A layer above hides the first name of this file: its next name takes the content.
            if member.linkname in moved:
                member.linkname = moved[member.linkname]
            else:
                moved[member.linkname] = name
                member.type = tarfile.REGTYPE
                member.size = (tree / name).stat().st_size
                with (tree / name).open("rb") as content:
                    output.addfile(member, content)
                continue
        output.addfile(member, source.extractfile(member) if member.isreg() else None)


def _write_layer_archive(store: Store, layer: Layer, path: Path) -> None:
    """Write a layer's tar without whiteouts, atomically."""
    descriptor, temporary = tempfile.mkstemp(prefix=".making.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file, _open_layer(store, layer) as source:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as output:
                for member in source:
                    if not posixpath.basename(member.name).startswith(".wh."):
                        content = source.extractfile(member) if member.isreg() else None
                        output.addfile(member, content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _render_removals(tree: Path) -> Iterator[str]:
    """Yield the instructions that remove what a layer hides of those below."""
    hidden = [path for path, _, kind in iterate_entries(tree) if kind != "entry"]
    for start in range(0, len(hidden), _MAX_PATHS_REMOVED):
        paths = hidden[start : start + _MAX_PATHS_REMOVED]
        yield f"RUN {json.dumps(['/bin/rm', '-rf', '--', *paths])}"


def _render_config(config: RunConfig | None) -> Iterator[str]:
    """Yield the instructions for an image's configuration (Dockerfile reference)."""
    if config is None:
        return
    for variable in config.env or ():
        name, _, value = variable.partition("=")
        yield f"ENV {name}={_quote_value(value)}"
    for name, value in sorted((config.labels or {}).items()):
        yield f"LABEL {_quote_value(name)}={_quote_value(value)}"
    for port in sorted(config.exposed_ports or ()):
        yield f"EXPOSE {port}"
    if config.working_dir:
        yield f"WORKDIR {_escape_variables(config.working_dir)}"
    if config.user:
        yield f"USER {_escape_variables(config.user)}"
    if config.entrypoint:
        yield f"ENTRYPOINT {_render_arguments(config.entrypoint)}"
    if config.cmd:
        yield f"CMD {_render_arguments(config.cmd)}"


def _render_arguments(arguments: Sequence[str]) -> str:
    return json.dumps(list(arguments))


def _quote_value(text: str) -> str:
    if "\n" in text:
        raise UsageError(
            f"a Dockerfile cannot contain a value with a line break: {text!r}",
            hint="export the image with type=oci or type=docker",
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escape_variables(escaped)}"'


def _escape_variables(text: str) -> str:
    return text.replace("$", "\\$")
