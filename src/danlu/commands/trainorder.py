"""What somebody orders to be trained: the flags of ``danlu train`` as one value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["Share", "TrainOrder"]


class Share(msgspec.Struct, frozen=True):
    """What each replica of one type may use; empty (None): as for all types."""

    cpu: str = ""
    memory: str = ""
    gpu: int | None = None


class TrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A training job as it was ordered, of a script, a command or a manifest.

    Exactly one of ``script`` (a path), ``command`` (the words of a program) and ``file`` (a
    manifest, ``-`` for ``text``) is given; ``args`` follow the script. ``replicas`` are numbers by
    replica type in any letter case. ``cpu`` and ``memory`` are Kubernetes quantities; ``shares``,
    by replica type too, go before them. ``env`` is ``FILE[:FUNC]``, ``image`` a reference,
    ``python`` a path; without any of them it is the environment of the script's directory, or the
    present Python. ``deadline`` is in seconds, ``clean`` a clean pod policy in any letter case,
    ``volumes`` are ``SOURCE:TARGET[:ro]``. ``directory`` is where the order was given, ``on`` the
    place where it is to run (:mod:`danlu.commands.places`). ``files``, ``value``, ``tied``,
    ``code`` and ``labels`` are as in :class:`~danlu.jobs.types.Submission`.
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
    shares: Mapping[str, Share] = {}
    env: str = ""
    image: str = ""
    host_python: bool = False
    python: str = ""
    name: str = ""
    backoff_limit: int | None = None
    restart: str = ""
    deadline: float | None = None
    clean: str = ""
    variables: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    tied: bool = False
    on: str = ""
    code: Mapping[str, Path] = {}
    offline: bool = False
    frozen: bool = False
