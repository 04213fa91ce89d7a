"""Types shared by the notebook's modules: a job cell, its options and the user's variables.

A cell takes this path::

    text ── parser ──> Cell(options, code) ── bundle ──> directory (code, modules, variables)
         ── submission ──> Submission ── run_job ──> live view, then results or an exception
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from danlu.jobs.types import JobResult
from danlu.submission.options import JobOptions


class ReplicaOptions(msgspec.Struct, frozen=True):
    """The options of one replica type: the replica count and Kubernetes quantities for each."""

    replicas: int
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None


class CellOptions(JobOptions, frozen=True, kw_only=True):
    """The options of a cell, from its ``%key=value`` lines or from ``%%distributed``.

    Without ``image`` and ``env`` the kernel's Python is used.
    """

    #: By replica type in lower case (``ps``, ``worker``, ``master``, ``chief``, …).
    replicas: Mapping[str, ReplicaOptions] = {}
    #: Notebook variables to send to the replicas.
    send: tuple[str, ...] = ()
    #: Variables of the cell to return: rank 0's values, or with ``every`` each replica's.
    returns: tuple[str, ...] = ()
    every: bool = False
    #: Local modules or packages to send although the cell does not import them by name.
    modules: tuple[str, ...] = ()
    detach: bool = False
    #: How many log lines to show.
    lines: int | None = None
    #: Bytes that may be sent, and returned by each replica; None for the configured limit.
    limit: int | None = None
    #: Ranges in the syntax of ``danlu train --sweep``; with ``trials`` Optuna chooses the points.
    sweep: tuple[str, ...] = ()
    metric: str = ""
    goal: str = ""
    pattern: str = ""
    parallel: int | None = None
    trials: int | None = None
    storage: str = ""


class Cell(msgspec.Struct, frozen=True):
    """A cell to run as a job.

    ``code`` is the text of the cell with its option lines blanked and nothing else changed, so
    line N of the code is line N of the cell. ``is_checked`` is whether the kernel's own Python,
    which may know newer syntax than this one, has accepted the code.
    """

    options: CellOptions
    code: str
    is_checked: bool = False


class SentVariable(msgspec.Struct, frozen=True):
    """A variable that is sent as a pickle of ``size`` bytes.

    ``modules`` are the modules that its pickle mentions. ``libraries`` maps a module to its
    distribution and version.
    """

    name: str
    size: int
    modules: tuple[str, ...] = ()
    libraries: Mapping[str, Sequence[str]] = {}


class VariableStore(Protocol):
    """The user's variables, here or in a kernel elsewhere."""

    def write_pickles(
        self, names: Sequence[str], directory: Path, *, limit: int
    ) -> list[SentVariable]:
        """Write ``NAME.pickle`` for each variable to the directory, which may be missing.

        ``limit`` is in bytes, for all of them together. Raises
        :class:`danlu.errors.UsageError` for a variable that does not exist, cannot be pickled or
        is too large.
        """

    def write_modules(self, names: Sequence[str], directory: Path, *, limit: int) -> None:
        """Write the user's own modules among ``names``, and all that they import.

        Does nothing if their files are found here, or by replicas. ``limit`` is in bytes. Raises
        :class:`danlu.errors.UsageError` if they are too large.
        """

    @property
    def python_version(self) -> str:
        """The version of the Python that wrote the pickles."""

    def find_kind(self, name: str) -> Literal["variable", "module", ""]:
        """Return what a name of the notebook is; empty if it does not exist."""

    def set_results(
        self, result: JobResult, names: Sequence[str], *, every: bool, trusted: bool
    ) -> None:
        """Set the variables that a successful job returned, all or none.

        With ``every`` each is a dict by replica. With ``trusted`` pickles are loaded also from
        untrusted environments. Raises :class:`danlu.errors.DanluError` if that is impossible.
        """
