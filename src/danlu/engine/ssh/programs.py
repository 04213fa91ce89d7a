"""The programs that the server starts inside an environment."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from danlu.engine.container_scripts import FIND_SHELL_SCRIPT
from danlu.engine.types import ExecRequest

#: What OpenSSH's server does: a command is for the user's shell.
_RUN_COMMAND = f'{FIND_SHELL_SCRIPT}exec "$SHELL" -c "$1"'

#: Where distributions install sftp-server: Debian, Fedora, Alpine and Arch, SUSE.
_RUN_SFTP = """\
for program in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server \
    /usr/lib/ssh/sftp-server /usr/libexec/sftp-server; do
    [ -x "$program" ] && exec "$program"
done
command -v python3 >/dev/null && exec python3 -I -S -c "$1"
echo "danlu: sftp needs openssh-sftp-server or python3 in the environment" >&2
exit 127
"""

#: The shell of a user interprets the arguments, as for OpenSSH's server: `scp host:'*.txt' .`.
_RUN_SCP = """\
# Some shells find files that cannot be executed.
[ -x "$(command -v scp)" ] && exec "${SHELL:-/bin/sh}" -c "scp $1"
if command -v python3 >/dev/null; then
    export DANLU_SCP_SERVER="$2"
    exec "${SHELL:-/bin/sh}" -c "exec python3 -I -S -c \\"\\$DANLU_SCP_SERVER\\" $1"
fi
echo "danlu: scp needs openssh-client or python3 in the environment" >&2
exit 127
"""

#: What ``scp -O`` sends, the default before OpenSSH 9, without the arguments' values.
_SCP_COMMAND = re.compile(r"scp((?: -[a-z]+)* -[a-z]*[ft](?: .*)?)", re.DOTALL)

_RUN_SOCKET = """\
command -v python3 >/dev/null && exec python3 -I -S -c "$@"
exit 127
"""


def shell_request(
    environment: dict[str, str], *, user: str = "", terminal: bool = False
) -> ExecRequest:
    """Return the request for the user's login shell."""
    return ExecRequest((), environment, user=user, terminal=terminal)


def command_request(
    command: str, environment: dict[str, str], *, user: str = "", terminal: bool = False
) -> ExecRequest:
    """Return the request for a command line, which the user's shell interprets."""
    if scp := _SCP_COMMAND.fullmatch(command):
        args = ("/bin/sh", "-c", _RUN_SCP, "sh", scp[1], _read_program("scp_server"))
        return ExecRequest(args, environment, user=user, terminal=terminal)
    return ExecRequest(
        ("/bin/sh", "-c", _RUN_COMMAND, "sh", command), environment, user=user, terminal=terminal
    )


def sftp_request(*, user: str = "") -> ExecRequest:
    """Return the request for an SFTP server on stdin and stdout."""
    return ExecRequest(("/bin/sh", "-c", _RUN_SFTP, "sh", _read_program("sftp_server")), user=user)


def socket_request(action: str, path: str, *, user: str = "") -> ExecRequest:
    """Return the request that connects to, or listens on, a Unix socket of the environment."""
    program = _read_program("unix_socket")
    return ExecRequest(("/bin/sh", "-c", _RUN_SOCKET, "sh", program, action, path), user=user)


@cache
def _read_program(name: str) -> str:
    return files("danlu.engine.ssh.inside").joinpath(f"{name}.py").read_text()
