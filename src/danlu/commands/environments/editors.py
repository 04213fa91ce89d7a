"""Open an environment in an editor of the VS Code family, over SSH."""

from __future__ import annotations

import shutil
import subprocess
from urllib.parse import quote

from danlu.commands.environments.ssh_hosts import add_ssh_host
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.ssh_config import host_name
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


def format_editor_uri(environment: EnvironmentDirectory, editor: str) -> str:
    """Return the address that opens the environment's project in ``editor``.

    As in Remote-SSH's documentation: ``SCHEME://vscode-remote/ssh-remote+HOST/PATH``.
    """
    directory = PROJECT_DIRECTORY if environment.read_spec().project else "/"
    host = quote(host_name(environment.name))
    return f"{EDITORS[editor]}://vscode-remote/ssh-remote+{host}{directory}"


def open_editor(environment: EnvironmentDirectory, settings: Settings, editor: str) -> bool:
    """Open the environment in ``editor``; return False if that program is not on this machine.

    Raises :class:`OutsideError` if the editor fails.
    """
    add_ssh_host(environment, settings)
    program = shutil.which(editor)
    if program is None:
        return False
    directory = PROJECT_DIRECTORY if environment.read_spec().project else "/"
    command = [program, "--remote", f"ssh-remote+{host_name(environment.name)}", directory]
    try:
        done = subprocess.run(command, check=False)
    except OSError as error:
        raise OutsideError(f"cannot start {program}: {error.strerror}") from error
    if done.returncode:
        raise OutsideError(f"{editor} exited with code {done.returncode}")
    return True
