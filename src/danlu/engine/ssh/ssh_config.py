"""The user's SSH configuration: a file per environment, and one ``Include`` of all of them.

::

    CONFIG/ssh.d/NAME.conf          the host ``NAME.danlu``
    CONFIG/ssh.d/NAME.CONTEXT.conf  the same of an environment on another machine
    ~/.ssh/config                   its first line includes CONFIG/ssh.d/*.conf
    ~/.ssh/config.danlu-backup      as it was before that line was added
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from danlu.engine.ssh.keys import HOST_SUFFIX, SshKeys
from danlu.errors import OutsideError, UsageError
from danlu.util.files import read_existing_file, write_atomic
from danlu.util.locks import file_lock

DEFAULT_USER = "danlu"
"""The user name that means the environment's own user; any other is one of the image."""

_COMMENT = "# Environments of danlu"
_BACKUP_SUFFIX = ".danlu-backup"
#: What is a word for both the shell that runs ProxyCommand and OpenSSH's own parser.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def host_name(environment: str, context: str = "") -> str:
    """Return the host of an environment in the user's SSH configuration.

    ``context`` is that of the other machine on which the environment is.
    """
    return _join_label(environment, context) + HOST_SUFFIX


def render_host(
    environment: str, keys: SshKeys, *, program: Sequence[str], context: str = ""
) -> str:
    """Return the block of an environment's host.

    ``program`` is danlu with an absolute path, because graphical editors have another ``PATH``.
    """
    host = host_name(environment, context)
    command = " ".join(_quote_for_shell(word) for word in (*program, "ssh", "--stdio", environment))
    # What the command reports goes to the transport's log too: editors discard stderr.
    return f"""\
# Written by danlu for its environment {environment}; transport log: {keys.transport_log}
Host {host}
    HostName {host}
    User {DEFAULT_USER}
    ProxyCommand {command}
    ProxyUseFdpass no
    IdentityFile {_quote_path(keys.client_key)}
    IdentitiesOnly yes
    IdentityAgent none
    PreferredAuthentications publickey
    HostKeyAlias {host}
    HostKeyAlgorithms ssh-ed25519
    UserKnownHostsFile {_quote_path(keys.known_hosts)}
    GlobalKnownHostsFile /dev/null
    UpdateHostKeys no
    CheckHostIP no
    StrictHostKeyChecking yes
    ForwardAgent no
    ForwardX11 no
    ControlMaster no
    ControlPath none
    ServerAliveInterval 5
"""


class SshConfiguration:
    """The files of one user: ``directory`` is danlu's ``ssh.d``, ``user_file`` is OpenSSH's.

    Without a ``user_file`` no file of the user's is changed.
    """

    def __init__(self, directory: Path, user_file: Path | None) -> None:
        self._directory = directory
        self._user_file = user_file

    def add_host(
        self, environment: str, keys: SshKeys, *, program: Sequence[str], context: str = ""
    ) -> None:
        """Write an environment's host and include it; changes nothing that is up to date.

        Raises :class:`OutsideError` if a file cannot be written.
        """
        text = render_host(environment, keys, program=program, context=context).encode()
        path = self._host_file(environment, context)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if read_existing_file(path) != text:
                write_atomic(path, text, mode=0o600)
            if self._user_file is not None:
                # Read, changed, replaced: two processes at once would lose one change.
                with file_lock(self._directory / ".lock"):
                    self._include_hosts(self._user_file)
        except OSError as error:
            raise OutsideError(
                f"cannot write the SSH configuration: {error.strerror}: {error.filename}",
                hint=f"`danlu ssh-config {environment}` prints what to add to it",
            ) from error

    def remove_host(self, environment: str, context: str = "") -> None:
        """Remove an environment's host; the ``Include`` stays for the others."""
        self._host_file(environment, context).unlink(missing_ok=True)

    def list_files(self, environment: str) -> list[Path]:
        """Return the files that make ``NAME.danlu`` a host."""
        user_files = [] if self._user_file is None else [self._user_file]
        return [self._host_file(environment, ""), *user_files]

    def include_line(self) -> str:
        """Return the line of ``~/.ssh/config``."""
        # Its paths are patterns, in which OpenSSH before 9.9 replaces no ``%``.
        pattern = f"{self._directory}/*.conf"
        return f'Include "{_require_quotable(pattern)}"' if " " in pattern else f"Include {pattern}"

    def _host_file(self, environment: str, context: str) -> Path:
        return self._directory / f"{_join_label(environment, context)}.conf"

    def _include_hosts(self, user_file: Path) -> None:
        """Add the line at the top, where no ``Host`` block can contain it, unless it is there."""
        # A linked file is replaced where the link leads, as with files of dotfile managers.
        path = Path(os.path.realpath(user_file))
        before = read_existing_file(path)
        line = self.include_line().encode()
        if line in (before or b"").splitlines():
            return
        mode = 0o600
        if before is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            mode = stat.S_IMODE(path.stat().st_mode)
            backup = user_file.with_name(user_file.name + _BACKUP_SUFFIX)
            if not os.path.lexists(backup):
                write_atomic(backup, before, mode=mode)
        write_atomic(path, b"%s\n%s\n\n%s" % (_COMMENT.encode(), line, before or b""), mode=mode)


def _join_label(environment: str, context: str) -> str:
    return f"{environment}.{context}" if context else environment


def _quote_path(path: Path) -> str:
    """Return a path as OpenSSH's configuration takes it: ``%`` doubled, in quotes if needed."""
    text = str(path).replace("%", "%%")
    if _PLAIN_WORD.fullmatch(text.replace("%%", "")):
        return text
    return f'"{_require_quotable(text)}"'


def _quote_for_shell(word: str) -> str:
    """Return a word of ``ProxyCommand``, which a shell runs after OpenSSH has replaced ``%``."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    return "'" + _require_quotable(word).replace("%", "%%") + "'"


def _require_quotable(text: str) -> str:
    """Return ``text``; raise :class:`UsageError` for what OpenSSH has no quotes for."""
    if any(character in text for character in "\"'\\$\n\r\0"):
        raise UsageError(
            f"the path {text!r} cannot be written into an SSH configuration",
            hint="set DANLU_HOME to a directory without quotes, backslashes and '$'",
        )
    return text
