"""What a framework is to danlu: a name, its replica types, and four small functions.

One file of :mod:`danlu.training.frameworks` makes one :class:`Framework`; a package of somebody
else's gives one through the entry point group ``danlu.frameworks``. A framework does no I/O, and
knows neither of the drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from danlu.training.types import (
    ConditionType,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)

__all__ = ["FieldRef", "File", "Finding", "Framework", "Tally", "Variable", "Verdict"]


class Finding(msgspec.Struct, frozen=True, order=True):
    """Something wrong in a manifest: the field's path (``spec.runPolicy.backoffLimit``) and what.

    ``hint`` says what to write instead, where that is known.
    """

    path: str
    message: str
    hint: str = ""


class FieldRef(msgspec.Struct, frozen=True):
    """The value of a variable that only the replica's own place knows.

    ``path`` is a field of the pod as Kubernetes' downward API names it (``status.podIP``). A
    driver gives it as ``valueFrom.fieldRef``, or as the value where it knows that.
    """

    path: str


Variable = tuple[str, str | FieldRef]
"""Name and value; a value may name variables before it, as Kubernetes does: ``$(POD_IP):80``."""


class File(msgspec.Struct, frozen=True):
    """A small file that every replica of a job finds in the directory of its topology."""

    text: str
    executable: bool = False


class Tally(msgspec.Struct, frozen=True):
    """How the replicas of one type stand when an outcome is decided.

    ``expected`` are wanted; each of them is counted at most once. ``failed`` ended badly for good,
    ``restarting`` ended badly and will be made again. ``first_succeeded`` is about index 0.
    """

    expected: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    restarting: int = 0
    first_succeeded: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What the tallies say of the job; ``blamed`` is the type that decided it."""

    condition: Literal[
        ConditionType.RUNNING,
        ConditionType.RESTARTING,
        ConditionType.SUCCEEDED,
        ConditionType.FAILED,
    ]
    blamed: ReplicaType


Tallies = Mapping[ReplicaType, Tally]
Template = Mapping[str, Any]


def _no_findings(job: Job) -> Iterable[Finding]:
    return ()


def _no_files(job: Job, topology: Topology, running: Sequence[ReplicaId]) -> Mapping[str, File]:
    return {}


def _no_objects(job: Job, topology: Topology) -> Sequence[Mapping[str, Any]]:
    return ()


def _as_it_is(job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
    return command


def _undecorated(job: Job, replica: ReplicaId, topology: Topology, template: Template) -> Template:
    return template


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One kind of job.

    ``name`` is what ``--framework`` takes (``pytorch``), ``kind`` and ``plural`` are Kubernetes',
    ``replicas_field`` is the key of the replica map in the manifest's spec. ``types`` are in the
    order in which they decide an outcome; ``defaults`` are the replicas of a type that gives no
    number, 1 unless named. ``single`` are the types of which a job has no more than one replica,
    as ``check`` says too. ``common_port`` says that the program knows one port for all replicas,
    ``any_container`` that it may be in a container of any name (the first one), and that no port
    is declared for it.

    ``options`` names the spec's further fields of this kind, ``elasticPolicy`` and
    ``successPolicy`` among them where it has those. ``environment`` gives the variables
    of one replica, in order, for the containers that ``everywhere`` says: all of them, or the one
    named ``container``. ``outcome`` gives the job's verdict, None for none yet. ``check`` gives
    findings beyond the common ones. ``leader`` is the replica whose log and result stand for the
    job's, and that has the label ``job-role=master``. ``files`` are written before the first
    replica starts and again whenever the ``running`` ones change. ``launch`` makes of the command
    that runs a script once what a replica of a type runs (``mpirun``, a worker that waits); given
    no command, what a replica runs whose manifest names none, empty for the image's own.
    ``decorate`` changes the pod of one replica on a cluster (init containers, volumes). Replicas
    have a Service each there unless ``services`` is false. ``objects`` are documents of further
    objects that a job owns on a cluster (rights of its launcher), made before its pods.
    """

    name: str
    kind: str
    plural: str
    replicas_field: str
    types: tuple[ReplicaType, ...]
    container: str
    port_name: str
    port: int
    environment: Callable[[Job, ReplicaId, Topology], Sequence[Variable]]
    outcome: Callable[[Job, Tallies], Verdict | None]
    leader: Callable[[Job], ReplicaId]
    aliases: tuple[str, ...] = ()
    required: tuple[ReplicaType, ...] = ()
    single: tuple[ReplicaType, ...] = ()
    restart_policy: RestartPolicy = RestartPolicy.NEVER
    options: tuple[str, ...] = ()
    defaults: Mapping[ReplicaType, int] = field(default_factory=dict)
    everywhere: bool = True
    any_container: bool = False
    common_port: bool = False
    check: Callable[[Job], Iterable[Finding]] = _no_findings
    files: Callable[[Job, Topology, Sequence[ReplicaId]], Mapping[str, File]] = _no_files
    launch: Callable[[Job, ReplicaType, Sequence[str]], Sequence[str]] = _as_it_is
    decorate: Callable[[Job, ReplicaId, Topology, Template], Template] = _undecorated
    services: bool = True
    objects: Callable[[Job, Topology], Sequence[Mapping[str, Any]]] = _no_objects
