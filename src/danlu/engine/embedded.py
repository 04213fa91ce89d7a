"""Run one command in an image on this machine, with no daemon: what ``danlu run`` does.

Nothing here is asynchronous: a start is measured in milliseconds, and an event loop costs many.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.errors import MachineError, UsageError
from danlu.sandbox import children, runtime, trust, users
from danlu.sandbox.prepare import prepared
from danlu.sandbox.types import SYSTEM_PATH, Mount, Process, Root
from danlu.sandbox.union import Union

if TYPE_CHECKING:
    from danlu.graph.types import ImageConfig

__all__ = ["PROJECT", "WAIT_ONE_STREAM", "process_of", "run", "send"]

PROJECT = "/workspace"

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# A shell that waits is the first process, because the kernel drops the signals that a first
# process does not handle: `sleep` would not end at Ctrl-C. `exit` keeps it from exec'ing.
_WAIT = '"$@"; exit $?'
#: As that, where output and errors are one: a runtime copies them from two pipes, which loses their
#: order.
WAIT_ONE_STREAM = '"$@" 2>&1; exit $?'


def run(
    layers: Sequence[Path],
    config: ImageConfig,
    *,
    args: Sequence[str],
    work: Path,
    project: Path | None = None,
    volumes: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
    user: str = "",
    terminal: bool = False,
    runtime_name: str = "",
    gpus: str = "",
) -> int:
    """Run ``args`` (the image's own command when empty) in ``layers``; give its exit code.

    ``project`` is writable at ``/workspace``, which then is the working directory. ``work`` is a
    private directory on the store's file system; what the program changes in its root is
    dropped. ``user`` (else the image's) is a name or number. With ``terminal`` it has one, joined
    to ours; without, input and output are ours. SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the
    program. Exit codes: 128+n for signal n, 126 and 127 as shells do. Needs
    :func:`danlu.sandbox.userns.enter`, and no threads. Raises :class:`MachineError` where the
    program could not be started, :class:`UsageError` for a wrong argument.
    """
    if gpus:
        raise UsageError("--gpus is not built yet", hint="run without it, on the CPU")
    chosen = runtime.find(runtime_name)
    union = Union(layers)
    command = tuple(args) or (*config.entrypoint, *config.command)
    if not command:
        raise UsageError("no command was given, and the image has none", hint="danlu run -- CMD")
    process = process_of(
        union,
        config,
        command,
        directory=PROJECT if project else "",
        environment=environment or {},
        user=user,
        terminal=terminal,
    )
    mounts = [*([Mount(PROJECT, project)] if project else []), *volumes]
    with prepared(
        process,
        Root(tuple(layers)),
        mounts=mounts,
        trust=trust.gather(work),
        network=True,
        work=work,
        shell=WAIT_ONE_STREAM if _one_stream() and not terminal else _WAIT,
    ) as place:
        code = _launch(chosen, place, terminal=terminal)
        code, reason = runtime.outcome(code, place / "log", process.args[0])
    if code == runtime.FAILED_BEFORE and reason:
        raise MachineError(
            f"{chosen.name} could not start the program",
            details=(reason,),
            hint="`danlu doctor` checks this machine",
        )
    return code


def process_of(
    union: Union,
    config: ImageConfig,
    command: tuple[str, ...],
    *,
    directory: str = "",
    environment: Mapping[str, str],
    user: str = "",
    terminal: bool = False,
) -> Process:
    """``command`` as a process of an image: what is not given (directory, user) is the image's.

    Raises :class:`UsageError` for a user that the image does not have.
    """
    who = users.find(union, user or config.user)
    return Process(
        command,
        {
            "PATH": SYSTEM_PATH,
            "HOME": who.home,
            **({"TERM": os.environ.get("TERM", "xterm")} if terminal else {}),
            **dict(config.environment),
            **environment,
        },
        working_directory=directory or config.working_directory or "/",
        uid=who.uid,
        gid=who.gid,
        groups=who.groups,
        terminal=terminal,
    )


def _one_stream() -> bool:
    try:
        output, errors = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (output.st_dev, output.st_ino) == (errors.st_dev, errors.st_ino)


def _launch(chosen: runtime.Runtime, place: Path, *, terminal: bool) -> int:
    """Start the runtime and wait for it, passing signals on; its exit status, negative for one."""
    command = chosen.command(place)
    killed: list[int] = []
    sys.stdout.flush()
    with _terminal_kept(terminal), _forwarding(killed) as keeper:
        # With a terminal the runtime must stay in our session to read it. Without, it gets one
        # of its own: Ctrl-C then reaches the program once, through us.
        pid = os.posix_spawn(command[0], command, chosen.environment(), setsid=not terminal)
        keeper(pid)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return -killed[0] if killed else code


@contextmanager
def _forwarding(killed: list[int]) -> Iterator[Callable[[int], None]]:
    """Give a function that takes the keeper; pass signals, earlier ones too, on to its program.

    ``killed`` notes a signal that had to be turned into a kill.
    """
    keepers: list[int] = []
    waiting: list[int] = []

    def forward(number: int, frame: object) -> None:
        if not keepers:
            waiting.append(number)
        elif not send(keepers[0], number):
            killed.append(number)

    def take(keeper: int) -> None:
        keepers.append(keeper)
        for number in waiting:
            forward(number, None)

    # What our caller ignores (nohup, a background job) stays ignored.
    heard = [one for one in _FORWARDED if signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield take
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send(keeper: int, number: int) -> bool:
    """Send a signal to the program of a keeper (:mod:`danlu.sandbox.children`).

    False where its whole namespace had to be killed instead.
    """
    first = children.program_inside(keeper)
    if first is None:
        children.kill_inside(keeper)
        return False
    if any(script.endswith((_WAIT, WAIT_ONE_STREAM)) for script in children.words(first)[2:3]):
        # The waiting shell drops it; its one child is the program.
        for program in children.children(first):
            children.send(program, number)
    elif children.heeds(first, number):
        children.send(first, number)
    else:
        # A first process without a handler: the kernel would drop what ends any other process.
        children.kill_inside(keeper)
        return False
    return True


@contextmanager
def _terminal_kept(terminal: bool) -> Iterator[None]:
    """Give our terminal back as it was, also when the runtime was killed in the middle."""
    if not terminal or not os.isatty(0):
        yield
        return
    import termios

    before: list[Any] = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
