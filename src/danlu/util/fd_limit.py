"""The limit of open files: raise it, and report that it was reached."""

from __future__ import annotations

import errno
import resource

from danlu.errors import MachineError

_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE)


def raise_fd_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard limit; return both as they were before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def is_fd_shortage(error: BaseException) -> bool:
    """Return whether ``error`` means that no more files can be opened."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE_ERRNOS


def fd_shortage_error(what: str = "danlu") -> MachineError:
    """Return the error for a process, which ``what`` names, that reached its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineError(
        f"too many open files: {what} may open {soft}",
        hint="raise the limit with `ulimit -n 4096` before danlu is started",
    )
