"""One builder a file; the list of all of them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.buildah import Buildah
from benchmarks.peers.buildkit import BuildKit
from benchmarks.peers.danlu import Danlu
from benchmarks.peers.docker import Docker
from benchmarks.peers.peer import Missing, Peer, Setting

__all__ = ["ALL", "Missing", "Peer", "Setting"]

ALL: dict[str, Callable[[Setting], Peer]] = {
    "docker": Docker,
    "buildkit": lambda setting: BuildKit(setting, installer="pip", mounts=False),
    "buildkit-pip": lambda setting: BuildKit(setting, installer="pip", mounts=True),
    "buildkit-uv": lambda setting: BuildKit(setting, installer="uv", mounts=True),
    "buildah-uv": Buildah,
    "danlu": Danlu,
}
