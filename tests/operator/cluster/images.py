"""Images of a node: that of pods' sandboxes, which only waits, and those that danlu builds."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.conftest import ROOT, Danlu
from tests.notebook.environments import uv

__all__ = ["PAUSE", "make_wheel", "pause_archive", "push_image"]

PAUSE = "danlu.test/pause:1"
_BUSYBOX = "busybox"
#: What scripts call by its own name.
_APPLETS = ("sh", "nslookup", "seq", "sleep")


def pause_archive(busybox: Path, archive: Path) -> None:
    """Write an image layout as a tar file; its one layer is a static ``busybox``."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content), **more}

    links = {f"bin/{applet}": f"/{_BUSYBOX}" for applet in _APPLETS}
    layer = _pack_tar({_BUSYBOX: busybox.read_bytes()}, links)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{_BUSYBOX}", "tail", "-f", "/dev/null"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{oci}.config.v1+json"),
        "layers": [blob(layer, f"{oci}.layer.v1.tar")],
    }
    named = {"io.containerd.image.name": PAUSE}
    entry = blob(json.dumps(manifest).encode(), f"{oci}.manifest.v1+json", annotations=named)
    index = {"schemaVersion": 2, "manifests": [entry]}
    whole = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **blobs,
    }
    archive.write_bytes(_pack_tar(whole))


def _pack_tar(files: dict[str, bytes], links: Mapping[str, str] = MappingProxyType({})) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


def push_image(directory: Path, name: str, danlu: Danlu) -> str:
    """The image of a directory in a registry, by its digest."""
    file = directory.parent / f"{directory.name}.json"
    danlu("build", "-t", f"{name}:1", "--push", "--metadata-file", str(file), cwd=directory)
    return f"{name}@{json.loads(file.read_text())['image']['digest']}"


def make_wheel(directory: Path, *, source: Path) -> None:
    """Build a wheel from a copy of this source, because building leaves files behind."""
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    uv("build", "--quiet", "--wheel", "--out-dir", str(directory), str(source))
