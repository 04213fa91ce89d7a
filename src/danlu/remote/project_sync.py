"""The copy of a project on another machine."""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

from danlu.errors import UsageError
from danlu.project_sync.project_copy import ProjectCopy
from danlu.project_sync.types import CopyPlace
from danlu.remote.remote_host import RemoteHost
from danlu.util.files import read_existing_file, write_atomic
from danlu.util.locks import file_lock
from danlu.util.paths import Paths

#: Below the home directory of the other machine.
_PROJECTS = ".local/share/danlu/projects"


class RemoteProject(ProjectCopy):
    """A project on this machine and its copy on another one, which no other machine shares.

    ``directory`` is that of the copy, as a word of a shell script.
    """

    def __init__(self, host: RemoteHost, project: Path, paths: Paths) -> None:
        if not is_project_directory(project):
            raise UsageError(
                f"{project} is not a project: all of it would be copied to {host.name}",
                hint="change to a project's directory",
            )
        identity = b"%s\0%s" % (_read_identity(paths), os.fsencode(project))
        key = hashlib.sha256(identity).hexdigest()[:32]
        name = hashlib.sha256(host.url.encode()).hexdigest()[:8]
        place = f"{_PROJECTS}/{key}"
        directory = f"{place}/{project.name}"
        self.directory = f'"$HOME"/{shlex.quote(directory)}'
        super().__init__(
            host,
            project,
            paths.state / "remote" / f"{key}-{name}.json",
            CopyPlace(directory, f"{place}.stage", volume_file=f"{place}.volume"),
        )


def is_project_directory(directory: Path) -> bool:
    """Return whether a directory may be a project: not the home directory, nor the root."""
    return directory not in (Path.home(), Path(directory.anchor))


def open_remote_project(host: RemoteHost, project: Path, paths: Paths) -> RemoteProject | None:
    """Return a project with its copy on ``host``; None if both share it."""
    return None if host.shares(project) else RemoteProject(host, project, paths)


def _read_identity(paths: Paths) -> bytes:
    """Return what tells this machine's projects from those of others, created the first time."""
    file = paths.data / "machine-identity"
    with file_lock(file.with_name(".machine-identity.lock")):
        identity = read_existing_file(file)
        if not identity:
            identity = os.urandom(16).hex().encode()
            write_atomic(file, identity, mode=0o600)
    return identity
