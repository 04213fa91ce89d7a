"""The options of a training job, for ``danlu train``, ``danlu.train`` and notebook cells alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack

import msgspec


class ReplicaResources(msgspec.Struct, frozen=True):
    """The resources of each replica of one type; empty (None) means as for all types."""

    cpu: str = ""
    memory: str = ""
    gpu: int | None = None


class TrainKeywords(TypedDict, total=False):
    """The keyword arguments of :func:`danlu.train` that become :class:`TrainOptions`.

    Each is the field with its name; ``workers`` is short for ``replicas={"worker": …}``. None means
    the default.
    """

    framework: str
    workers: int | None
    replicas: Mapping[str, int] | None
    cpu: float | str
    memory: str
    gpu: int | None
    env: str
    image: str
    host_python: bool
    environment: Mapping[str, str] | None
    name: str
    restart: str | None
    backoff_limit: int | None
    deadline: float | None
    clean_pod_policy: str | None
    volumes: Iterable[str]
    claims: Mapping[str, str] | None
    trust_results: bool
    on: str


class _AllKeywords(TrainKeywords, total=False):
    """Further keywords of :meth:`TrainOptions.from_keywords`."""

    script: str
    module: str
    file: str
    text: str
    args: Iterable[Any]
    finish_timeout: float | None
    grace: int | None
    tied: bool
    offline: bool
    frozen: bool


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A training job as the user asked for it.

    Exactly one of ``script`` (a path), ``module`` (a dotted name), ``command`` (a program and its
    arguments) and ``file`` (a manifest; ``-`` if it is ``text``) is given. ``args`` follow the
    script or the module.

    * ``replicas`` and ``resources`` are by replica type, in any case. ``cpu`` and ``memory`` are
      Kubernetes quantities for all types that ``resources`` does not name.
    * ``env`` (``FILE[:FUNC]``), ``image`` (a reference) and ``host_python`` exclude each other.
      Without any it is the environment of the script's directory, else ``python`` (a path), else
      the active Python.
    * ``deadline``, ``finish_timeout`` (how long other replicas may go on after the job succeeded)
      and ``grace`` (before SIGKILL) are in seconds.
    * ``volumes`` are ``SOURCE:TARGET[:ro]``; ``claims`` are directories by the name of a manifest's
      PersistentVolumeClaim.
    * ``directory`` is the current directory of the command. ``on`` is where the job runs
      (:mod:`danlu.commands.jobs.targets`).
    * ``trust_results`` opens pickles that replicas return (SECURITY.md).
    * ``files``, ``value``, ``tied``, ``displays``, ``code`` and ``labels`` are as in
      :class:`~danlu.jobs.types.Submission`.
    """

    directory: Path
    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    file: str = ""
    text: str = ""
    args: tuple[str, ...] = ()
    framework: str = ""
    replicas: Mapping[str, int] = {}
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None
    resources: Mapping[str, ReplicaResources] = {}
    env: str = ""
    image: str = ""
    host_python: bool = False
    python: str = ""
    name: str = ""
    backoff_limit: int | None = None
    restart: str = ""
    deadline: float | None = None
    finish_timeout: float | None = None
    grace: int | None = None
    clean_pod_policy: str = ""
    environment: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    claims: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    tied: bool = False
    trust_results: bool = False
    displays: bool = False
    on: str = ""
    code: Mapping[str, Path] = {}
    offline: bool = False
    frozen: bool = False

    @classmethod
    def from_keywords(cls, directory: Path, **keywords: Unpack[_AllKeywords]) -> Self:
        """Build options from keywords. None means the default, and values are converted.

        Raises :class:`TypeError` for an unknown keyword.
        """
        values: dict[str, Any] = {
            name: value for name, value in keywords.items() if value is not None
        }
        workers = values.pop("workers", None)
        if workers is not None:
            values["replicas"] = {**values.get("replicas", {}), "worker": workers}
        if "cpu" in values:
            values["cpu"] = str(values["cpu"])
        for name in ("args", "volumes"):
            if name in values:
                values[name] = tuple(map(str, values[name]))
        return cls(directory=directory, **values)
