"""Run one command in an image on this machine without a daemon, for ``danlu run``.

Nothing here is asynchronous: a start takes milliseconds, and an event loop would add many.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.errors import MachineError, UsageError
from danlu.sandbox import container_processes, network_env, runtime, users
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import expand_home, prepare_run
from danlu.sandbox.types import (
    PROJECT_DIRECTORY,
    SYSTEM_PATH,
    ContainerEdits,
    Mount,
    ProcessSpec,
    RootFilesystem,
)
from danlu.util import process_tree
from danlu.util.sanitize import escape_unprintable

if TYPE_CHECKING:
    from danlu.graph.image_config import ImageConfig

_FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# The first process is a waiting shell, because the kernel drops signals that the first process of
# a pid namespace does not handle: `sleep` would ignore Ctrl-C. `exit` keeps the shell from exec'ing
# the program. The trap is for a terminal's Ctrl-C, which reaches the shell too: dash would then
# exit with 130 even if the program handles it.
_WAIT_SCRIPT = 'trap : INT; "$@"; exit $?'
#: The same if stdout and stderr are one file: a runtime copies them from two pipes, which would
#: lose their order.
WAIT_SCRIPT_ONE_STREAM = 'trap : INT; "$@" 2>&1; exit $?'
#: Runs one command of ``runtime.init``. A signal that ends it ends the run too. It is one line,
#: because the errors of the shell contain line numbers.
_INIT_FUNCTION = (
    'danlu_init() {{ /bin/sh -c "$1" </dev/null {streams} && return; danlu_code=$?;'
    " case $danlu_code in 129|130|131|143) exit $danlu_code;; esac;"
    " printf '%s\\n' \"error: runtime.init failed with exit code $danlu_code: $2\" {streams};"
    " exit 1; }}; "
)


def run_command(
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
    seccomp: str = "",
    edits: ContainerEdits | None = None,
    init: Sequence[str] = (),
    shm_size: int = 0,
    trusted: bool = False,
) -> int:
    """Run ``args`` (by default the image's command) on ``layers`` and return the exit code.

    ``project`` is mounted writable at ``/workspace``, the working directory. ``work`` is a private
    directory on the store's file system; changes that the program makes to its root are discarded.
    Targets of ``volumes`` may start with ``~/``. ``init`` are commands of the shell to run before,
    in the same container: if one fails, stderr names it and the exit code is 1. ``shm_size`` is the
    bytes of ``/dev/shm``, 0 for the kernel's default. A ``trusted`` image gets this machine's
    settings of pip and uv. ``edits`` give it devices. ``user`` (by
    default the image's) is a name or number. With ``terminal`` it gets a terminal connected to
    ours; without, it shares our input and output. SIGINT, SIGTERM, SIGHUP and SIGQUIT are
    forwarded. Exit codes: 128+n for signal n, 126 and 127 as in shells. Requires
    :func:`danlu.sandbox.userns.enter` and no threads. Raises :class:`MachineError` if the program
    could not be started, and :class:`UsageError` for an invalid argument.
    """
    edits = edits or ContainerEdits()
    chosen = runtime.find_runtime(runtime_name)
    view = LayerView(layers)
    command = tuple(args) or (*config.entrypoint, *config.command)
    if not command:
        raise UsageError("no command given, and the image has none", hint="danlu run -- CMD")
    process = image_process(
        view,
        config,
        command,
        directory=PROJECT_DIRECTORY if project else "",
        environment={**edits.environment, **(environment or {})},
        user=user,
        groups=edits.groups,
        terminal=terminal,
    )
    volumes = expand_home(volumes, process.environment["HOME"])
    mounts = [*([Mount(PROJECT_DIRECTORY, project)] if project else []), *volumes]
    with prepare_run(
        process,
        RootFilesystem(tuple(layers)),
        mounts=mounts,
        network_env=network_env.detect_network_environment(work, trusted=trusted),
        network=True,
        work=work,
        # If both outputs are one file, they are joined inside: the runtime copies two pipes, which
        # would lose the order of lines.
        shell=_render_start_script(view, init, one_stream=_outputs_are_one() and not terminal),
        seccomp=seccomp,
        shm_size=shm_size,
        edits=edits,
    ) as bundle:
        code = _run_bundle(chosen, bundle, terminal=terminal)
        code, reason = runtime.interpret_exit(code, bundle / "log", process.args[0])
    if code == runtime.FAILED_TO_START and reason:
        raise MachineError(
            f"{chosen.name} could not start the program",
            details=(reason,),
            hint="`danlu doctor` checks this machine",
        )
    return code


def _render_start_script(view: LayerView, init: Sequence[str], *, one_stream: bool) -> str:
    """Return the script of the first process: the ``init`` commands, then the program."""
    wait = WAIT_SCRIPT_ONE_STREAM if one_stream else _WAIT_SCRIPT
    if not init:
        return wait
    if view.entry(view.resolve("/bin/sh")) is None:
        raise UsageError(
            "runtime.init needs a shell, and the image has no /bin/sh",
            hint="add --no-init to start without it",
        )
    calls = (
        f"danlu_init {shlex.quote(command)} {shlex.quote(escape_unprintable(command))}; "
        for command in init
    )
    function = _INIT_FUNCTION.format(streams="2>&1" if one_stream else ">&2")
    return f"{function}{''.join(calls)}{wait}"


def image_process(
    view: LayerView,
    config: ImageConfig,
    command: tuple[str, ...],
    *,
    directory: str = "",
    environment: Mapping[str, str],
    user: str = "",
    groups: tuple[int, ...] = (),
    terminal: bool = False,
) -> ProcessSpec:
    """Return ``command`` as a process of an image, with the image's directory and user as defaults.

    ``groups`` are added to those that the user has in the image.
    Raises :class:`UsageError` for a user that the image does not have.
    """
    resolved = users.find_user(view, user or config.user)
    return ProcessSpec(
        command,
        {
            "PATH": SYSTEM_PATH,
            "HOME": resolved.home,
            **({"TERM": os.environ.get("TERM", "xterm")} if terminal else {}),
            **dict(config.environment),
            **environment,
        },
        working_directory=directory or config.working_directory or "/",
        uid=resolved.uid,
        gid=resolved.gid,
        groups=tuple(dict.fromkeys((*resolved.groups, *groups))),
        terminal=terminal,
    )


def _outputs_are_one() -> bool:
    try:
        output, errors = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (output.st_dev, output.st_ino) == (errors.st_dev, errors.st_ino)


def _run_bundle(chosen: runtime.OciRuntime, place: Path, *, terminal: bool) -> int:
    """Run the bundle, forwarding signals; return the exit status, negative for a signal."""
    command = chosen.command(place)
    killed: list[int] = []
    sys.stdout.flush()
    with _preserve_terminal(terminal), _forward_signals(killed) as keeper:
        # With a terminal the runtime must stay in our session to read it. Otherwise it gets a
        # new one, so that Ctrl-C reaches the program only once, through us.
        pid = os.posix_spawn(command[0], command, chosen.environment(), setsid=not terminal)
        keeper(pid)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return -killed[0] if killed else code


@contextmanager
def _forward_signals(killed: list[int]) -> Iterator[Callable[[int], None]]:
    """Forward signals to the program; yields a function to call with the keeper's process id.

    Signals that arrive before that are forwarded then. ``killed`` receives a signal that had to be
    turned into a kill.
    """
    keepers: list[int] = []
    waiting: list[int] = []

    def forward(number: int, frame: object) -> None:
        if not keepers:
            waiting.append(number)
        elif not send_signal(keepers[0], number):
            killed.append(number)

    def take(keeper: int) -> None:
        keepers.append(keeper)
        for number in waiting:
            forward(number, None)

    # Signals that our parent ignores (nohup, a background job) stay ignored.
    heard = [number for number in _FORWARDED_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield take
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send_signal(keeper: int, number: int) -> bool:
    """Send a signal to the program of a keeper (:mod:`danlu.sandbox.container_processes`).

    Returns False if its whole namespace had to be killed instead.
    """
    first = container_processes.find_container_init(keeper)
    if first is None:
        container_processes.kill_container(keeper)
        return False
    if not container_processes.is_program_running(keeper):
        # The runtime's own process would report the signal as a failure to start.
        process_tree.send_signal([first])
        return False
    script = _read_wait_script(first)
    if script:
        programs = process_tree.child_pids(first)
        # Before the shell has started the program the signal would be lost.
        if not programs or any(map(_read_wait_script, programs)):
            container_processes.kill_container(keeper)
            return False
        # The waiting shell would drop it; its only child is the program.
        for program in programs:
            processes = [program]
            if _is_init_command(program, script):
                # A shell that waits for another program may react only when that has ended.
                processes += process_tree.list_descendants(program)
            process_tree.send_signal(processes, number)
    elif container_processes.handles_signal(first, number):
        process_tree.send_signal([first], number)
    else:
        # No shell and no handler: the kernel would drop a signal that ends any other process.
        container_processes.kill_container(keeper)
        return False
    return True


def find_program(keeper: int) -> int | None:
    """Return the program of a keeper; None if it has not started or has ended."""
    first = container_processes.find_container_init(keeper)
    if first is None or not _read_wait_script(first):
        return first
    return next(iter(process_tree.child_pids(first)), None)


def _read_wait_script(first: int) -> str:
    """Return the script of a container's first process if that is our waiting shell."""
    script = "".join(container_processes.read_cmdline(first)[2:3])
    return script if script.endswith((_WAIT_SCRIPT, WAIT_SCRIPT_ONE_STREAM)) else ""


def _is_init_command(pid: int, script: str) -> bool:
    """Return whether a process is the shell of a ``runtime.init`` command of the script."""
    command = container_processes.read_cmdline(pid)
    return (
        command[:2] == ["/bin/sh", "-c"]
        and command[3:] == [""]
        and f"danlu_init {shlex.quote(command[2])} " in script
    )


@contextmanager
def _preserve_terminal(terminal: bool) -> Iterator[None]:
    """Restore our terminal afterwards, even if the runtime was killed."""
    if not terminal or not os.isatty(0):
        yield
        return
    before: list[Any] = termios.tcgetattr(0)
    try:
        yield
    finally:
        # The terminal may be gone if its window was closed.
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
