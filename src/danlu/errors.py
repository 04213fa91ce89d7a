"""The one tree of errors danlu raises, each with a message, a hint and an exit code.

::

    DanluError
    ├── UsageError                2   wrong use of the command line or of the Python API
    │   ├── BuildFileError        2   a finding in a build file, with its place
    │   ├── NotBuiltYet           2   the file uses a function this version plans but does not build
    │   ├── ResolveError          2   packages that cannot be satisfied
    │   └── LockError             2   a lock that is damaged, or stale under ``--frozen``
    ├── StepFailed                1   the user's own step ended badly
    ├── JobFailed                 1   a training job failed
    ├── Difference                1   a check found a difference
    ├── OutsideError              3   registry, mirror, index, network, disk
    │   ├── TemporaryError        3   worth trying again
    │   └── ChecksumError         3   bytes are not what their digest says
    ├── StoreError                3   the store is damaged or cannot be written
    └── MachineError              4   this machine lacks something; the hint says what to do

Exit codes are those of the CLI contract (docs/architecture). Whether to retry is a property of
the type: only :class:`TemporaryError` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "BuildFileError",
    "ChecksumError",
    "DanluError",
    "Difference",
    "JobFailed",
    "LockError",
    "MachineError",
    "NotBuiltYet",
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
    """A place in a user's file: path as shown to the user, 1-based line, 1-based columns.

    ``column`` is 0 where only the line is known. ``end_column`` is the column after the last
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
    """Something went wrong that the user can read about: one clear message, and what to do next.

    ``span`` is the place in the user's file that caused it; ``source_line`` the text of that
    line, so that a caret can be drawn without reading the file again; ``details`` are further
    lines (a step's last output, a resolver's reasons).
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
    """Wrong usage, build file, packages or lock."""

    exit_code = 2


class BuildFileError(UsageError):
    """A finding in a build file, with its place."""


class NotBuiltYet(UsageError):
    """The file uses ``function``, which this version parses and plans but does not build."""

    def __init__(self, function: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"{function} is understood but not built by this version of danlu",
            span=span,
            hint="`danlu plan` shows the environment; take the call out to build the rest",
        )


class ResolveError(UsageError):
    """Packages that cannot be satisfied; ``details`` hold the resolver's reason."""


class LockError(UsageError):
    """A lock that is damaged or that no longer fits the build file."""


class StepFailed(DanluError):
    """A step of the user's ended badly; ``details`` hold its last lines of output."""

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
    """A training job failed; ``details`` hold the last lines of the replica that failed first."""

    exit_code = 1


class Difference(DanluError):
    """A check found a difference."""

    exit_code = 1


class OutsideError(DanluError):
    """Something outside failed: registry, network, cluster, mirror, disk."""


class TemporaryError(OutsideError):
    """An outside failure that is worth trying again."""


class ChecksumError(OutsideError):
    """Bytes that came from outside are not what their digest says."""


class StoreError(DanluError):
    """The store is damaged or cannot be written."""


class MachineError(DanluError):
    """This machine lacks something; the hint says what to do about it."""

    exit_code = 4
