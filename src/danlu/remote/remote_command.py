"""Run danlu's commands on another machine as if it were this one."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from danlu.engine.container_scripts import render_exports
from danlu.engine.contexts import Context
from danlu.engine.settings import Settings
from danlu.errors import OutsideError
from danlu.project_sync.local_files import LOCK_FILE
from danlu.remote.connection import connect_host
from danlu.remote.environment_link import EnvironmentLink
from danlu.remote.program_transfer import MISSING_PROGRAM, copy_program, program_script
from danlu.remote.project_sync import is_project_directory, open_remote_project
from danlu.remote.remote_host import RUNNING_DIRECTORY, SSH_FAILED
from danlu.util.danlu_program import (
    CALLER_CONTEXT_VARIABLE,
    CALLER_DIRECTORY_VARIABLE,
    CONTEXT_VARIABLE,
    LOCAL_CONTEXT,
    PASSED_PREFIX,
)

_MODULE = "danlu.cli"
#: Commands for which the project is copied first.
_PROJECT_COMMANDS = frozenset(
    ("add", "build", "exec", "lock", "plan", "remove", "run", "start", "train", "up")
)
#: Commands that run on the other machine without it.
_OTHER_COMMANDS = frozenset(
    (
        *("commit", "down", "image", "jobs", "login", "logout", "logs", "port", "ps", "rename"),
        *("serve", "ssh", "stop", "top", "vscode"),
    )
)
#: Commands after which other environments may exist, or have other ports.
_ENVIRONMENT_COMMANDS = frozenset(("down", "rename", "start", "stop", "up"))
#: Commands that lock. They may run build scripts of packages in a container, which needs Linux.
_LOCK_COMMANDS = frozenset(("add", "lock", "remove"))
#: Files that these commands write, by their endings.
_EDITED_FILES = (".envd", ".py", ".toml", ".txt")
#: Commands that may write a lock file.
_LOCKING_COMMANDS = frozenset(("build", "lock", "run", "train", "up"))


class RemoteCommand:
    """A command of a context on another machine.

    ``variables`` are passed to the other machine. ``notify`` is called with sentences for the user.
    """

    def __init__(
        self,
        name: str,
        context: tuple[str, Context],
        arguments: Sequence[str],
        variables: Mapping[str, str],
        project: Path,
        settings: Settings,
        notify: Callable[[str], None],
    ) -> None:
        self._name = name
        self._notify = notify
        self._host = connect_host(context[1], settings.paths, notify)
        self._arguments = tuple(arguments)
        self._variables = variables
        self._project = project
        self._cache = settings.paths.cache
        self._context = context[0]
        # Other commands may also be given outside a project.
        self._copy = (
            open_remote_project(self._host, project, settings.paths)
            if name in _PROJECT_COMMANDS or is_project_directory(project)
            else None
        )
        self._environments = EnvironmentLink(context[0], self._host, settings)

    def prepare(self) -> None:
        """Copy the project if the command needs it.

        Raises :class:`~danlu.errors.DanluError` if the machine cannot be reached.
        """
        if self._copy is not None and self._name in _PROJECT_COMMANDS:
            for note in self._copy.send_changes().list_notes(self._host.name):
                self._notify(note)

    def run(self, *, terminal: bool) -> int:
        """Run the command with our streams, in a terminal if asked; return its exit code."""
        if self._name == "up" and terminal:
            return self._open_shell()
        code = self._run_there(self._arguments, terminal=terminal)
        self._follow_up()
        return code

    def _open_shell(self) -> int:
        """Start the environment, forward its ports, and then open the shell."""
        code = self._run_there((*self._arguments, "--detach"), terminal=False)
        self._follow_up()
        return code or self._run_there(self._arguments, terminal=True)

    def _follow_up(self) -> None:
        """Make environments reachable from here, and copy a new lock file here."""
        if self._name in _ENVIRONMENT_COMMANDS:
            for note in self._environments.update():
                self._notify(note)
        files = [LOCK_FILE]
        if self._name in ("add", "remove"):
            files += [path.name for path in self._project.iterdir() if path.suffix in _EDITED_FILES]
        elif self._name != "lock" and not (
            self._name in _LOCKING_COMMANDS and self._is_lock_outdated()
        ):
            return
        if self._copy is not None:
            for note in self._copy.fetch_changes(only=files).list_notes(self._host.name):
                self._notify(note)

    def _is_lock_outdated(self) -> bool:
        """Return whether the lock file here is older than a build file, or missing."""
        try:
            locked = (self._project / LOCK_FILE).stat().st_mtime_ns
        except FileNotFoundError:
            return True
        files = [*self._project.glob("*.envd"), *self._project.glob("build.py")]
        return any(file.stat().st_mtime_ns > locked for file in files)

    def _run_there(self, arguments: Sequence[str], *, terminal: bool) -> int:
        run = self._host.run_in_terminal if terminal else self._host.run_interruptibly
        code = run(self._prepare_script(arguments))
        if code == MISSING_PROGRAM:
            copy_program(self._host, self._cache)
            if "--stdio" in arguments:  # ssh has read the client's first message
                raise OutsideError(f"danlu on {self._host.name} was updated; connect again")
            code = run(self._prepare_script(arguments))
        if code == SSH_FAILED:
            raise OutsideError(
                f"the connection to {self._host.name} failed or was lost",
                hint="what ran in the foreground ends; environments and detached jobs keep running",
            )
        return 128 - code if code < 0 else code

    def _prepare_script(self, arguments: Sequence[str]) -> str:
        """Return the script that runs the command; send the variables that it reads."""
        if self._copy is not None:
            directory = self._copy.directory
        elif self._host.shares(self._project):
            directory = shlex.quote(str(self._project))
        else:
            directory = '"$HOME"'
        # Commands that need no project run without a copy, too.
        enter = f"cd {directory} 2>/dev/null || cd || exit 3"
        if self._name in _PROJECT_COMMANDS:
            enter = f"cd {directory} || exit 3"
        if self._variables:
            # Not in command lines, which everybody can read: values may be secret.
            passed = {PASSED_PREFIX + name: value for name, value in self._variables.items()}
            place = f'"$HOME/{RUNNING_DIRECTORY}"'
            file = f"{place}/{secrets.token_hex(8)}.env"
            write = f"umask 077; mkdir -p {place} && cat >{file}"
            self._host.run(write, input=os.fsencode(render_exports(passed)))
            enter += f"; . {file}; rm -f {file}"
        variables = {
            CONTEXT_VARIABLE: LOCAL_CONTEXT,
            CALLER_CONTEXT_VARIABLE: self._context,
            CALLER_DIRECTORY_VARIABLE: str(self._project),
            "TERM": os.environ.get("TERM", ""),
        }
        program = program_script(_MODULE, *map(shlex.quote, arguments))
        return f"{enter}\n{render_exports(variables)}{program}"


def runs_remotely(command: str) -> bool:
    """Return whether a command runs on the context's machine.

    The others use files of this one, or ask that machine (``ps``).
    """
    return command == "doctor" or (needs_linux(command) and command != "ps")


def needs_linux(command: str) -> bool:
    """Return whether a command needs a machine that can run containers."""
    if command in _LOCK_COMMANDS:
        return sys.platform != "linux"
    return command in _PROJECT_COMMANDS or command in _OTHER_COMMANDS
