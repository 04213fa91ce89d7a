"""The exceptions danlu raises, each with a message, a hint and an exit code.

::

    DanluError
    ├── UsageError                2   wrong usage of the command line or the Python API
    │   ├── BuildFileError        2   an error in a build file, with its location
    │   ├── ResolveError          2   packages that cannot be resolved
    │   └── LockError             2   an invalid lockfile, or a stale one under ``--frozen``
    ├── StepFailed                1   a step of the user failed
    ├── JobFailed                 1   a training job failed
    ├── DifferenceFound           1   a check found a difference
    ├── OutsideError              3   registry, mirror, index, network, disk
    │   ├── TemporaryError        3   worth retrying
    │   └── ChecksumError         3   content does not match its digest
    ├── StoreError                3   the store is damaged or cannot be written
    └── MachineError              4   this machine lacks something; the hint says what to do

Exit codes are part of the CLI's contract (docs/guides/troubleshooting.md). Whether to retry is a
property of the type: only :class:`TemporaryError` is retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "BuildFileError",
    "ChecksumError",
    "DanluError",
    "DifferenceFound",
    "JobFailed",
    "LockError",
    "MachineError",
    "OutsideError",
    "ResolveError",
    "Span",
    "StepFailed",
    "StoreError",
    "TemporaryError",
    "UsageError",
]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A location in a user's file: the path as shown to the user, 1-based line and columns.

    ``column`` is 0 if only the line is known. ``end_column`` is the column after the last
    character, on the same line.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        column = f":{self.column}" if self.column else ""
        return f"{self.file}:{self.line}{column}"


class DanluError(Exception):
    """An error to show to the user: one clear message, and what to do about it.

    ``span`` is the location in the user's file that caused it and ``source_line`` the text of that
    line, so that a caret can be drawn without reading the file again. ``details`` are further
    lines, such as a step's last output or the resolver's reasons.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        span: Span | None = None,
        source_line: str = "",
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.span = span
        self.source_line = source_line
        self.details = details


class UsageError(DanluError):
    """Invalid usage, build file, requirements or lockfile."""

    exit_code = 2


class BuildFileError(UsageError):
    """An error in a build file, with its location."""


class ResolveError(UsageError):
    """Packages that cannot be resolved; ``details`` contain the resolver's reason."""


class LockError(UsageError):
    """A lockfile that is invalid or does not match the build file."""


class StepFailed(DanluError):
    """A step of the user failed; ``details`` contain the last lines of its output."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        code: int,
        hint: str = "",
        span: Span | None = None,
        source_line: str = "",
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, span=span, source_line=source_line, details=details)
        self.code = code


class JobFailed(DanluError):
    """A training job failed; ``details`` are the last lines of the first replica that failed."""

    exit_code = 1


class DifferenceFound(DanluError):
    """A check found a difference."""

    exit_code = 1


class OutsideError(DanluError):
    """Something outside of danlu failed: registry, network, cluster, mirror, disk."""


class TemporaryError(OutsideError):
    """An outside failure that is worth retrying."""


class ChecksumError(OutsideError):
    """Content from outside does not match its digest."""


class StoreError(DanluError):
    """The store is damaged or cannot be written."""


class MachineError(DanluError):
    """This machine lacks something; the hint says what to do about it."""

    exit_code = 4
