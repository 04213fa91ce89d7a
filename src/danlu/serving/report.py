"""What the runner reports from a container: read without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from danlu.errors import OutsideError
from danlu.util.files import read_regular_file

T = TypeVar("T")

#: Reports and recordings contain example inputs and outputs: larger ones are refused.
MAX_BYTES = 256 << 20


class PredictorError(msgspec.Struct, frozen=True):
    """Why a predictor failed; ``phase`` and ``kind`` are of :mod:`danlu.serving.runner`.

    ``name`` is the module or distribution that is missing. ``hosts`` are those that the process
    wanted to reach.
    """

    phase: str
    kind: str
    message: str
    name: str = ""
    traceback: str = ""
    hosts: tuple[str, ...] = ()


class InstalledDistributions(msgspec.Struct, frozen=True):
    """The Python distributions of a container, which of them were used, and their requirements."""

    installed: Mapping[str, str] = {}
    used: Mapping[str, int] = {}
    modules: Mapping[str, tuple[str, ...]] = {}
    requires: Mapping[str, tuple[str, ...]] = {}


class RunReport(msgspec.Struct, frozen=True):
    """What happened to the examples.

    ``outputs`` and ``again`` are those of two calls with the same inputs in one process.
    ``files`` are all files that were used, ``system`` the Debian packages that have any of them.
    """

    error: PredictorError | None = None
    schema: Mapping[str, Any] = {}
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    again: tuple[Any, ...] = ()
    hosts: tuple[str, ...] = ()
    distributions: InstalledDistributions = InstalledDistributions()
    system: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class GoldenExample(msgspec.Struct, frozen=True):
    """An input, and the output that the training environment gave for it."""

    input: Any
    output: Any


class GoldenRecording(msgspec.Struct, frozen=True):
    """The content of ``golden.json``."""

    examples: tuple[GoldenExample, ...]
    tolerance: float
    schema: Mapping[str, Any] = {}


class PackedPackage(msgspec.Struct, frozen=True):
    """A Python package of the training lock."""

    name: str
    version: str
    sha256: str = ""


class PackOrigin(msgspec.Struct, frozen=True):
    """The content of ``origin.json``: what a packed image was made from.

    ``lock`` is the digest of the training environment's section of the lock, ``training`` the
    digest of its image, ``layers`` the diff IDs of that image's layers. ``packages`` are the
    image's Python packages as the lock has them, ``dropped`` the names of the others.
    """

    lock: str
    training: str
    layers: tuple[str, ...]
    packages: tuple[PackedPackage, ...]
    dropped: tuple[str, ...] = ()
    system: tuple[str, ...] = ()


def read_report(directory: Path) -> RunReport:
    """Return the report that a container wrote into ``directory``.

    Raises :class:`OutsideError` if it is missing, invalid or too large.
    """
    data = read_regular_file(directory / "report.json", MAX_BYTES + 1)
    if data is None:
        raise OutsideError(
            "the container ended without a report",
            hint="its output is above; a process that was killed may have run out of memory",
        )
    return decode_json(data, RunReport, "the report of the container")


def decode_json(data: bytes, kind: type[T], what: str) -> T:
    """Decode JSON of a container or an image; raise :class:`OutsideError` if it is invalid."""
    if len(data) > MAX_BYTES:
        raise OutsideError(
            f"{what} is larger than {MAX_BYTES >> 20} MiB", hint="use smaller or fewer examples"
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise OutsideError(f"{what} is invalid: {error}") from error
