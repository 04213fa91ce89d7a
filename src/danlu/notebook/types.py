"""Types shared by the notebook's modules: a job cell, its options and the user's variables.

A cell takes this path::

    text ── parser ──> Cell(options, code) ── bundle ──> directory (code, modules, variables)
         ── submission ──> Submission ── run_job ──> live view, then results or an exception
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from danlu.commands.train.options import JobOptions


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


class Cell(msgspec.Struct, frozen=True):
    """A cell to run as a job.

    ``code`` is the text of the cell with its option lines blanked and nothing else changed, so
    line N of the code is line N of the cell.
    """

    options: CellOptions
    code: str


class VariableStore(Protocol):
    """The user's variables."""

    def get(self, name: str) -> Any:
        """Return a variable; raises :class:`danlu.errors.UsageError` if it does not exist."""

    def put(self, values: Mapping[str, Any]) -> None:
        """Set variables."""
