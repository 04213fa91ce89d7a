"""Start a program with a given list of file descriptors, without a fork of this process."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from contextlib import suppress

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

#: Above the number of descriptors that any program gets.
_MIN_FD = 32


def spawn_process(
    command: Sequence[str],
    descriptors: Sequence[int | None],
    *,
    environment: Mapping[str, str] | None = None,
    new_session: bool = False,
    default_signals: Iterable[int] = (),
) -> int:
    """Start ``command``, whose first word is a path, and return its process id.

    ``descriptors`` become its descriptors 0, 1, 2 and so on and stay open here; None is /dev/null.
    It gets no others, not even those that this process inherited: a shell may wait until all copies
    are closed. Its environment is this process's by default, and ``default_signals`` get their
    default action.
    """
    sources: list[int] = []
    inherited = _list_inheritable_descriptors(len(descriptors))
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_CLOSE, fd) for fd in inherited]
    try:
        for target, fd in enumerate(descriptors):
            if fd is None:
                actions.append((os.POSIX_SPAWN_OPEN, target, os.devnull, os.O_RDWR, 0))
                continue
            sources.append(_duplicate_above_targets(fd))
            actions.append((os.POSIX_SPAWN_DUP2, sources[-1], target))
        return os.posix_spawn(
            command[0],
            list(command),
            os.environ if environment is None else environment,
            file_actions=actions,
            setsid=new_session,
            setsigdef=default_signals,
        )
    finally:
        for source in sources:
            os.close(source)


def _duplicate_above_targets(fd: int) -> int:
    """Duplicate a descriptor to a number that no other is duplicated to by the child."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    except OSError as error:
        # fcntl(2): EINVAL means that the limit of open files is not above _MIN_FD.
        if error.errno == errno.EINVAL:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        raise


def _list_inheritable_descriptors(first: int) -> Iterator[int]:
    """Yield the descriptors from ``first`` on that a child would inherit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for name in os.listdir("/proc/self/fd"):
        # The descriptor with which the directory was read is closed.
        with suppress(OSError):
            if int(name) < first or not os.get_inheritable(int(name)):
                continue
            if limit != resource.RLIM_INFINITY and int(name) >= limit:
                # posix_spawn(3) refuses to close numbers above the limit, which was lowered after
                # our parent had opened this one.
                os.set_inheritable(int(name), False)
            else:
                yield int(name)
