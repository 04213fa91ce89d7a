"""Copy images to Docker and Podman, without the layers that they have."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from danlu.engine.docker.command import DockerCommand
from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.graph.progress import Progress, Transfer
from danlu.oci import docker_archive, layout
from danlu.oci.blob_export import LayerBlob
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import parse_image
from danlu.sandbox import userns
from danlu.store import Store
from danlu.store.store_layers import StoreLayers
from danlu.util.paths import Paths
from danlu.util.process_activity import (
    STUCK_SECONDS,
    finish_program,
    kill_program,
    limit_transfer,
)

_REPOSITORY = "danlu.local/image"
#: How long ``docker load`` may show no activity after it has read all: the daemon then unpacks.
_UNPACK_SECONDS = 4 * STUCK_SECONDS


def engine_image_name(digest: str) -> str:
    """Return the name that an image of the store, with that config digest, has in an engine."""
    return f"{_REPOSITORY}:{digest.removeprefix('sha256:')}"


def copy_image(command: DockerCommand, digest: str, paths: Paths, progress: Progress) -> str:
    """Copy an image of the store to the engine unless it is there; return its name.

    Forks, so the process must not have other threads. Raises :class:`OutsideError` if the engine
    refuses the image.
    """
    name = engine_image_name(digest)
    if _has_image(command, name):
        return name
    known = _list_layers(command)
    report = _report_layers(progress, f"{command.name}: {name}")
    if command.is_podman:
        _pull_layout(command, digest, name, paths, known, report)
    else:
        _load_archive(command, digest, name, paths, known, report)
    return name


def _has_image(command: DockerCommand, name: str) -> bool:
    try:
        command.run("image", "inspect", "-f", "{{.Id}}", name)
    except OutsideError:
        return False
    return True


def _list_layers(command: DockerCommand) -> list[tuple[DiffId, ...]]:
    """Return the diff IDs of the layers of each image, lowest first."""
    images = command.run("image", "ls", "--quiet", "--no-trunc").split()
    if not images:
        return []
    unique = list(dict.fromkeys(images))
    output = command.run("image", "inspect", "-f", "{{json .RootFS.Layers}}", *unique)
    try:
        lines = [msgspec.json.decode(line) for line in output.splitlines() if line.strip()]
        return [tuple(DiffId(str(item)) for item in line or ()) for line in lines]
    except (msgspec.DecodeError, TypeError) as error:
        raise OutsideError(f"cannot read the layers of {command.name}'s images: {error}") from error


def find_common_layers(
    layers: Sequence[DiffId], known: Sequence[Sequence[DiffId]]
) -> tuple[DiffId, ...]:
    """Return the lowest of ``layers`` that one of the ``known`` images begins with."""
    longest = 0
    for others in known:
        count = 0
        for ours, theirs in zip(layers, others, strict=False):
            if ours != theirs:
                break
            count += 1
        longest = max(longest, count)
    return tuple(layers[:longest])


def _load_archive(
    command: DockerCommand,
    digest: str,
    name: str,
    paths: Paths,
    known: Sequence[Sequence[DiffId]],
    report: Callable[[int, int], None],
) -> None:
    """Pipe an archive to ``docker load``, which this process starts outside our namespaces."""
    # With containerd's image store Docker needs all blobs (`docker info`: io.containerd.*).
    has_containerd = "io.containerd" in command.run("info", "-f", "{{json .DriverStatus}}")
    loader = subprocess.Popen(
        [command.find_program(), "load", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def write_layers() -> None:
        with (
            Store.open(paths.store) as store,
            store.lease(),
            limit_transfer(loader) as (_, file),
        ):
            stored = store.image(digest)
            assert stored is not None
            image = parse_image(stored.config)
            omit = () if has_containerd else find_common_layers(image.diff_ids, known)
            docker_archive.write_archive(
                image, StoreLayers(store), file.write, names=[name], progress=report, omit=omit
            )

    failure: DanluError | None = None
    try:
        userns.run_inside(paths, write_layers)
    except BaseException as error:
        if not isinstance(error, DanluError) or isinstance(error, TemporaryError):
            kill_program(loader)
            raise
        failure = error
    _, stderr = finish_program(loader, stuck_seconds=_UNPACK_SECONDS)
    if loader.returncode:
        # It is why the pipe broke.
        raise command.interpret_error("load", stderr.decode(errors="replace")) from failure
    if failure is not None:
        raise failure


def _pull_layout(
    command: DockerCommand,
    digest: str,
    name: str,
    paths: Paths,
    known: Sequence[Sequence[DiffId]],
    report: Callable[[int, int], None],
) -> None:
    """Let Podman pull from an OCI layout, in which the layers that it has are missing.

    Podman looks for a layer in its own storage first, by the digest of its content.
    """
    omit = {layer for layers in known for layer in layers}
    with tempfile.TemporaryDirectory(prefix="danlu-image-") as directory:
        # Podman names the image after the path, which must not contain capital letters.
        short = f"danlu-{os.urandom(8).hex()}"
        place = Path(directory, short)

        def write_layers() -> None:
            with Store.open(paths.store) as store, store.lease():
                stored = store.image(digest)
                assert stored is not None
                layout.write_layout(
                    place,
                    parse_image(stored.config),
                    _UncompressedLayers(store),
                    kind="none",
                    names=[name],
                    progress=report,
                    omit=omit,
                )

        userns.run_inside(paths, write_layers)
        command.run("pull", "--quiet", f"oci:{short}", directory=Path(directory))
        command.run("tag", f"localhost/{short}:latest", name)
        # Without the second name it would remove all.
        command.run("untag", name, f"localhost/{short}:latest")


class _UncompressedLayers(StoreLayers):
    """Layers whose blobs are the uncompressed tars, known by their diff IDs."""

    def find_blob(self, diff_id: DiffId, kind: Compression) -> LayerBlob | None:
        """Return the tar's digest and size."""
        return LayerBlob("none", Digest(diff_id), self.size(diff_id))

    def record_blob(self, diff_id: DiffId, blob: LayerBlob) -> None:
        """Record nothing: the digest of a tar is the diff ID."""


def _report_layers(progress: Progress, name: str) -> Callable[[int, int], None]:
    started = time.monotonic()

    def report(written: int, total: int) -> None:
        progress(Transfer(name, name, written, total, time.monotonic() - started))

    return report
