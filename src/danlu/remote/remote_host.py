"""Run programs on another machine with OpenSSH's client, over one shared connection."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from danlu.engine.contexts import SshAddress, parse_ssh_url
from danlu.errors import DanluError, MachineError, OutsideError
from danlu.util.process_activity import finish_program, run_program
from danlu.util.sanitize import read_last_line

#: ssh's exit code for its own failures.
SSH_FAILED = 255
#: sun_path without ssh's %C (40 digits) and the suffix of a socket that is being made (unix(7)).
_LONGEST_DIRECTORY = 107 - 59
# Commands that follow within ten minutes need no new connection. ssh notices a lost one.
_OPTIONS = (
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=600"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)

#: What ssh says of connections that it had.
_LOST_CONNECTION = re.compile("Broken pipe|closed by remote host|not responding|client_loop")

# Without the shared connection, this fails instead of opening one.
_SHARED_ONLY = ("-o", "ProxyCommand=false", "-o", "BatchMode=yes")
#: Directory of the process groups of running scripts, in the home directory there.
RUNNING_DIRECTORY = ".local/share/danlu/running"
#: Waits until nobody reads our output and errors (descriptor 3) any more.
_WATCH_CONNECTION = """
import os, select, signal
for descriptor in (1, 3):
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    poll.poll()
os.killpg(0, signal.SIGHUP)
"""
_INTERRUPT_TIMEOUT = 10
_MAX_ERRORS = 1 << 20


class RemoteHost:
    """A machine that ssh reaches; host keys, identities and jumps are the user's configuration.

    ``url`` identifies it; without ``address`` it is an address of ssh. ``options`` are added to
    ssh's command lines. ``mounts`` are directories that have the same path and content there.
    ``check`` is a command that works if the machine is reached.
    """

    def __init__(
        self,
        url: str,
        address: SshAddress | None = None,
        *,
        options: Sequence[str] = (),
        mounts: Sequence[Path] = (),
        check: str = "",
    ) -> None:
        self.url = url
        self._address = address or parse_ssh_url(url)
        self._options = tuple(options)
        self._mounts = tuple(mounts)
        self._check = check or f"{self._address.command} true"
        self._program = shutil.which("ssh")

    @property
    def name(self) -> str:
        """The host's name for messages."""
        return self._address.host

    def shares(self, directory: Path) -> bool:
        """Return whether a directory of this machine has the same path and content there."""
        return any(directory.is_relative_to(mount) for mount in self._mounts)

    def command(self, script: str = "", *, options: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a shell script there, or only connects.

        Raises :class:`MachineError` if ssh is not installed on this machine.
        """
        if self._program is None:
            raise MachineError("ssh is not installed", hint="sudo apt-get install openssh-client")
        address = self._address
        user = ("-l", address.user) if address.user else ()
        port = ("-p", address.port) if address.port else ()
        control = ("-o", f"ControlPath={control_directory()}/%C")
        words = [self._program, *control, *_OPTIONS, *self._options, *user, *port, *options]
        # OpenSSH passes the words on as one line to the login shell, whatever that is.
        return [*words, "--", address.host, *([f"sh -c {shlex.quote(script)}"] if script else [])]

    def run(self, script: str, *, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a shell script there and return its output and exit code.

        Raises :class:`OutsideError` if the machine cannot be reached.
        """
        done = run_program(self.command(script), input=input)
        if done.returncode == SSH_FAILED:
            raise self.unreachable_error(done.stderr)
        return done

    def pipe_script(
        self, script: str, *args: str, source: BinaryIO, target: BinaryIO, limit: int
    ) -> None:
        """See :class:`~danlu.project_sync.types.ScriptRunner`; both must be files of the disk."""
        words = shlex.join(("set", "--", *args))
        command = self.command(f"cd || exit 1\n{words}\n{script}")
        with tempfile.TemporaryFile() as errors:

            def read_progress() -> tuple[int, int]:
                # Which process reads and writes them, ssh decides.
                if os.fstat(errors.fileno()).st_size > _MAX_ERRORS:
                    raise OutsideError(f"{self.name} prints too many errors")
                printed = os.fstat(target.fileno()).st_size
                if printed > limit:
                    raise OutsideError(f"{self.name} sends more than was asked for")
                return printed, os.lseek(source.fileno(), 0, os.SEEK_CUR)

            process = subprocess.Popen(command, stdin=source, stdout=target, stderr=errors)
            finish_program(process, read_progress=read_progress)
            read_progress()
            errors.seek(0)
            printed = errors.read()
        if process.returncode == SSH_FAILED:
            raise self.unreachable_error(printed)
        if process.returncode:
            reason = read_last_line(printed, otherwise=f"exit code {process.returncode}")
            raise OutsideError(f"a script failed on {self.name}: {reason}")

    def run_in_terminal(self, script: str) -> int:
        """Run a shell script there in our terminal, and return its exit code."""
        return subprocess.run(self.command(script, options=("-tt",)), check=False).returncode

    def run_interruptibly(self, script: str) -> int:
        """Run a shell script there with our streams, and return its exit code.

        Ctrl-C, SIGTERM and SIGHUP reach the programs that it has started: without a terminal they
        only end ssh's client, while the shared connection keeps the programs and our streams. If
        the connection is lost, they get SIGHUP, as they do if they have a terminal.
        """
        directory = f'"$HOME/{RUNNING_DIRECTORY}"'
        group = f"{directory}/{secrets.token_hex(8)}"
        # Field 5 of proc(5)'s stat is the process group.
        record = f"mkdir -p {directory} && cut -d' ' -f5 /proc/$$/stat >{group}"
        watch = f"python3 -c {shlex.quote(_WATCH_CONNECTION)} 3>&2 2>/dev/null & watcher=$!"
        clean_up = f"trap 'rm -f {group}; kill $watcher 2>/dev/null' EXIT; trap : INT TERM HUP"
        command = self.command(f"{watch}; {clean_up}; {record}; ({script})", options=("-T",))
        with _raise_on_signals() as arrived:
            try:
                return subprocess.run(command, check=False).returncode
            except KeyboardInterrupt:
                name = signal.Signals(arrived[0] if arrived else signal.SIGINT).name[3:]
                # The script may not have begun yet.
                wait = f"for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s {group} ] && break; sleep 0.1; done"
                kill = self.command(
                    f'{wait}; read -r group <{group} && kill -{name} "-$group"',
                    options=_SHARED_ONLY,
                )
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        kill, capture_output=True, check=False, timeout=_INTERRUPT_TIMEOUT
                    )
                raise

    def unreachable_error(self, stderr: bytes) -> DanluError:
        """Return the error for a connection that failed or was lost, from what ssh printed."""
        reason = read_last_line(stderr)
        if not reason or _LOST_CONNECTION.search(reason):
            return OutsideError(
                f"the connection to {self.name} was lost" + (f": {reason}" if reason else ""),
                hint="repeat the command",
            )
        return OutsideError(
            f"cannot connect to {self.name}: {reason}", hint=f"`{self._check}` must work first"
        )


@contextmanager
def _raise_on_signals() -> Iterator[list[int]]:
    """Raise :class:`KeyboardInterrupt` for SIGTERM and SIGHUP too; yield what has arrived.

    A signal without a handler ends this process after the context, as it would have before.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    handlers = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGHUP)
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN  # as under nohup(1)
    }

    def handle(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)  # which raises danlu's own interrupt
        raise KeyboardInterrupt

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived and handlers[signal.Signals(arrived[0])] is signal.SIG_DFL:
            os.kill(os.getpid(), arrived[0])


def control_directory() -> Path:
    """Return a private directory with a path short enough for ssh's control sockets."""
    name = f"danlu-ssh-{os.getuid()}"
    directory = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", name)
    if len(os.fsencode(directory)) > _LONGEST_DIRECTORY:
        directory = Path("/tmp", name)
    directory.mkdir(mode=0o700, exist_ok=True)
    # Anybody can create this path in /tmp first, and would then own our connections' sockets.
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise MachineError(
            f"{directory} is not a private directory of this account",
            hint="remove it; another user may have created it",
        )
    return directory
