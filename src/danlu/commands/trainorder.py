"""What somebody orders to be trained: the flags of ``danlu train`` as one value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["TrainOrder"]


class TrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A training job as it was ordered, of a script, a command or a manifest.

    Exactly one of ``script`` (a path), ``command`` (the words of a program) and ``file`` (a
    manifest, ``-`` for ``text``) is given; ``args`` follow the script. ``replicas`` are numbers by
    replica type in any letter case. ``cpu`` and ``memory`` are Kubernetes quantities. ``env`` is
    ``FILE[:FUNC]``, ``image`` a reference, ``python`` a path; without any of them it is the
    environment of the script's directory, or the present Python. ``deadline`` is in seconds.
    ``directory`` is where the order was given.
    """

    directory: Path
    script: str = ""
    command: tuple[str, ...] = ()
    file: str = ""
    text: str = ""
    args: tuple[str, ...] = ()
    framework: str = ""
    replicas: Mapping[str, int] = {}
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None
    env: str = ""
    image: str = ""
    host_python: bool = False
    python: str = ""
    name: str = ""
    backoff_limit: int | None = None
    restart: str = ""
    deadline: float | None = None
    variables: Mapping[str, str] = {}
    value: bool = False
    offline: bool = False
    frozen: bool = False
