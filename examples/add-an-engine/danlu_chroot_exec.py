"""Run a program in a container of the engine, as ``docker exec`` does. Imports nothing of danlu."""

import ctypes
import json
import os
import pty
import select
import signal
import sys
import termios
import tty
from contextlib import suppress

VARIABLES = "DANLU_CHROOT_VARIABLES"
NAMESPACES = 0x00020000 | 0x20000000 | 0x08000000  # CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWIPC


def run_inside(pid: int, ids: list[int], directory: str, terminal: bool, words: list[str]) -> int:
    """Run a program in the namespaces and the root of a process; return its exit code."""
    variables = json.loads(os.environ[VARIABLES])
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    if ctypes.CDLL(None).setns(os.pidfd_open(pid), NAMESPACES):
        sys.exit("cannot enter the container")
    os.fchdir(root)
    os.chroot(".")
    os.setgroups(ids[2:])
    os.setgid(ids[1])
    os.setuid(ids[0])
    os.chdir(directory)
    # A terminal of the container: programs could put input into the user's own (TIOCSTI).
    child, master = pty.fork() if terminal else (os.fork(), -1)
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.execvpe(words[0], words, variables)
    if terminal:
        signal.signal(signal.SIGWINCH, lambda *_: copy_size(master))
        copy_size(master)
        copy_terminal(master)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


def copy_size(master: int) -> None:
    """Give the program's terminal the size of ours."""
    with suppress(termios.error):
        termios.tcsetwinsize(master, termios.tcgetwinsize(0))


def copy_terminal(master: int) -> None:
    """Copy between our terminal, made raw, and the program's until nobody has that any more."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSANOW)
    targets = {0: master, master: 1}
    while master in targets:
        for source in select.select(list(targets), [], [])[0]:
            data = b""
            with suppress(OSError):  # EIO: closed
                data = os.read(source, 1 << 16)
            if not data:
                del targets[source]
            while data:
                data = data[os.write(targets[source], data) :]
    termios.tcsetattr(0, termios.TCSANOW, before)


if __name__ == "__main__":
    _, pid, ids, place, kind, *args = sys.argv
    sys.exit(run_inside(int(pid), [*map(int, ids.split(","))], place, kind == "terminal", args))
