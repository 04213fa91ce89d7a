"""Open an environment in an editor of the VS Code family, over SSH."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from urllib.parse import quote

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import Settings
from danlu.engine.ssh.ssh_config import host_name
from danlu.environments.ssh_hosts import add_ssh_host
from danlu.errors import OutsideError
from danlu.sandbox.types import PROJECT_DIRECTORY

#: Editor programs, and the scheme of the addresses that open them from a browser or a terminal.
EDITORS = {
    "code": "vscode",
    "code-insiders": "vscode-insiders",
    "codium": "vscodium",
    "cursor": "cursor",
    "windsurf": "windsurf",
}


@dataclass(frozen=True, slots=True)
class EditorTarget:
    """A directory of a host of the user's SSH configuration."""

    host: str
    directory: str


def environment_target(environment: EnvironmentDirectory, settings: Settings) -> EditorTarget:
    """Return what an editor opens of an environment, whose host is configured if needed."""
    add_ssh_host(environment, settings)
    return EditorTarget(host_name(environment.name), project_directory(environment))


def project_directory(environment: EnvironmentDirectory) -> str:
    """Return the project's directory in an environment, or the root directory without one."""
    return PROJECT_DIRECTORY if environment.read_spec().project else "/"


def format_editor_uri(target: EditorTarget, editor: str) -> str:
    """Return the address that opens a directory in ``editor``.

    As in Remote-SSH's documentation: ``SCHEME://vscode-remote/ssh-remote+HOST/PATH``.
    """
    host = quote(target.host)
    return f"{EDITORS[editor]}://vscode-remote/ssh-remote+{host}{quote(target.directory)}"


def open_editor(target: EditorTarget, editor: str) -> bool:
    """Open a directory in ``editor``; return False if that program is not on this machine.

    Raises :class:`OutsideError` if the editor fails.
    """
    program = shutil.which(editor)
    if program is None:
        return False
    command = [program, "--remote", f"ssh-remote+{target.host}", target.directory]
    try:
        done = subprocess.run(command, check=False)
    except OSError as error:
        raise OutsideError(f"cannot start {program}: {error.strerror}") from error
    if done.returncode:
        raise OutsideError(f"{editor} exited with code {done.returncode}")
    return True
