"""What passes between the parts of the notebook: what a cell asks for, its code, what travels.

The way of a cell::

    text ── grammar ──> Cell(order, code) ── bundle ──> a directory (code, modules, values)
         ── submit ──> TrainOrder, Submission ── attend ──> live view, values, or an exception
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

__all__ = ["Cell", "CellOrder", "Role", "Values"]


class Role(msgspec.Struct, frozen=True):
    """How many replicas of one type, and what each may use (Kubernetes quantities; empty: any)."""

    replicas: int
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None


class CellOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell asks for, in ciao's words or as options of ``%%distributed``.

    ``roles`` are by replica type in small letters (``ps``, ``worker``, ``master``, ``chief`` …);
    ``cpu``, ``memory`` and ``gpu`` hold for all that say nothing themselves. ``clean`` is a clean
    pod policy (``All``, ``Running``, ``None``; empty where not said). ``volumes`` are
    ``SOURCE:TARGET[:ro]``, ``variables`` those of the environment. ``env`` is a build file
    (``FILE[:FUNC]``), ``image`` a reference, ``on`` a context's name; without the first two it is
    this kernel's Python. ``send`` and ``returns`` are names of variables; ``every`` asks for what
    each replica has of ``returns``. ``modules`` are local modules or packages to be sent that no
    import of the cell names. ``sweep`` are ranges as ``danlu train --sweep`` takes them, of which
    a study tries ``trials`` points where that is said. ``lines`` is how many lines of logs are
    shown at once.
    """

    framework: str = ""
    roles: Mapping[str, Role] = {}
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None
    clean: str = ""
    image: str = ""
    env: str = ""
    on: str = ""
    name: str = ""
    variables: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    every: bool = False
    modules: tuple[str, ...] = ()
    restart: str = ""
    backoff_limit: int | None = None
    deadline: float | None = None
    detach: bool = False
    lines: int | None = None
    sweep: tuple[str, ...] = ()
    metric: str = ""
    goal: str = ""
    pattern: str = ""
    parallel: int | None = None
    trials: int | None = None


class Cell(msgspec.Struct, frozen=True):
    """A cell that is a job.

    ``code`` is the cell's text with every magic line (and the line of ``%%distributed``) made
    empty and nothing else changed: line N of it is line N of the cell.
    """

    order: CellOrder
    code: str


class Values(Protocol):
    """The variables of whoever works in the notebook."""

    def get(self, name: str) -> Any:
        """A variable; raises :class:`danlu.errors.UsageError` with the nearest for none."""

    def put(self, values: Mapping[str, Any]) -> None:
        """Set variables."""
