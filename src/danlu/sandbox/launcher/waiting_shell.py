"""The shell of an image that waits for a program as the first process of its container."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from danlu.errors import UsageError
from danlu.sandbox import container_processes
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import has_shell
from danlu.util import process_tree
from danlu.util.sanitize import escape_unprintable

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


def render_start_script(view: LayerView, init: Sequence[str], *, one_stream: bool) -> str:
    """Return the script of the first process: the ``init`` commands, then the program."""
    wait = WAIT_SCRIPT_ONE_STREAM if one_stream else _WAIT_SCRIPT
    if not init:
        return wait
    if not has_shell(view):
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
