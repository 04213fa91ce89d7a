"""The options of a training job, for ``danlu train``, ``danlu.train`` and notebook cells alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

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


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What flags, keywords and cells set in the same way (:mod:`.job_options`).

    Empty text and None mean the default. ``cpu`` and ``memory`` are Kubernetes quantities of each
    replica, ``deadline`` is in seconds, ``volumes`` are ``SOURCE:TARGET[:ro]``. ``env``
    (``FILE[:FUNC]``) and ``image`` (a reference) exclude each other. ``on`` is where the job runs
    (:mod:`danlu.commands.jobs.backends`). ``environment`` are variables. ``trust_results`` opens
    pickles that replicas return (SECURITY.md).
    """

    framework: str = ""
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None
    env: str = ""
    image: str = ""
    name: str = ""
    on: str = ""
    backoff_limit: int | None = None
    restart: str = ""
    deadline: float | None = None
    clean_pod_policy: str = ""
    environment: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    trust_results: bool = False


class TrainOptions(JobOptions, frozen=True, kw_only=True):
    """A training job as the user asked for it.

    Exactly one of ``script`` (a path), ``module`` (a dotted name), ``command`` (a program and its
    arguments) and ``file`` (a manifest; ``-`` if it is ``text``) is given. ``args`` follow the
    script or the module.

    * ``replicas`` and ``resources`` are by replica type, in any case; ``cpu``, ``memory`` and
      ``gpu`` are for all types that ``resources`` does not name.
    * ``host_python`` excludes ``env`` and ``image``. Without any the job runs in the environment of
      the script's directory, else ``python`` (a path), else the active Python.
    * ``finish_timeout`` (how long other replicas may go on after the job succeeded) and ``grace``
      (before SIGKILL) are in seconds.
    * ``claims`` are directories by the name of a manifest's PersistentVolumeClaim.
    * ``directory`` is the current directory of the command.
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
    replicas: Mapping[str, int] = {}
    resources: Mapping[str, ReplicaResources] = {}
    host_python: bool = False
    python: str = ""
    finish_timeout: float | None = None
    grace: int | None = None
    claims: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    tied: bool = False
    displays: bool = False
    code: Mapping[str, Path] = {}
    offline: bool = False
    frozen: bool = False

    @classmethod
    def from_keywords(cls, directory: Path, **keywords: Any) -> Self:
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
