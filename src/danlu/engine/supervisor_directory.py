"""The directory of a supervisor, of a job or an environment, and what a supervisor answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from danlu.engine.control_client import SUPERVISOR_LOCK
from danlu.engine.supervisor_spawn import SUPERVISOR_LOG
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.util.locks import lock_is_held

_ERRORS: Mapping[int, type[DanluError]] = {
    type.exit_code: type for type in (UsageError, OutsideError, MachineError)
}


class SupervisorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request, and a supervisor's report when it has started.

    It is an error with its exit code, the exit code of a program, or empty.
    """

    error: str = ""
    hint: str = ""
    code: int = 0
    details: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: DanluError) -> SupervisorResponse:
        """Return the answer for what failed with ``error``."""
        return cls(error.message, error.hint, error.exit_code, tuple(error.details))

    def raise_error(self) -> None:
        """Raise the error that it reports, if any."""
        if self.error:
            error = _ERRORS.get(self.code, OutsideError)
            raise error(self.error, hint=self.hint, details=self.details)


@dataclass(frozen=True, slots=True)
class SupervisorDirectory:
    """A directory that belongs to one supervisor at a time."""

    directory: Path

    @property
    def name(self) -> str:
        """Name of the job or environment."""
        return self.directory.name

    @property
    def lock(self) -> Path:
        """Lock file, held while the supervisor runs; contains its process id."""
        return self.directory / SUPERVISOR_LOCK

    @property
    def logs(self) -> Path:
        """Directory of the logs of what it runs."""
        return self.directory / "logs"

    @property
    def supervisor_log(self) -> Path:
        """File with the supervisor's own output."""
        return self.directory / SUPERVISOR_LOG

    def is_running(self) -> bool:
        """Return whether the lock is held."""
        return lock_is_held(self.lock)

    def last_error(self) -> str:
        """Return the last line the supervisor printed; empty if it printed nothing."""
        try:
            lines = self.supervisor_log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return ""
        return lines[-1] if lines else ""
