"""The builders to compare, one module for each."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.buildah import BuildahPeer
from benchmarks.peers.buildkit import BuildKit
from benchmarks.peers.danlu import DanluPeer
from benchmarks.peers.docker import DockerPeer
from benchmarks.peers.peer import BuilderPeer, PeerMissingError, PeerSetting

__all__ = ["ALL", "BuilderPeer", "PeerMissingError", "PeerSetting"]

ALL: dict[str, Callable[[PeerSetting], BuilderPeer]] = {
    "docker": DockerPeer,
    "buildkit": lambda setting: BuildKit(setting, installer="pip", mounts=False),
    "buildkit-pip": lambda setting: BuildKit(setting, installer="pip", mounts=True),
    "buildkit-uv": lambda setting: BuildKit(setting, installer="uv", mounts=True),
    "buildah-uv": BuildahPeer,
    "danlu": DanluPeer,
}
