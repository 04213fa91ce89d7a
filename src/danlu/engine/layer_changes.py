"""What programs changed in the files of an image, as every engine reports it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from danlu.engine.layer_reading import walk_layer
from danlu.errors import OutsideError
from danlu.sandbox.layer_view import LayerView
from danlu.util.disk_full import disk_full_error, ran_out_of_space
from danlu.util.process_activity import run_program

#: Rewritten by the commands: never copied, and no reason for a line of their own.
ACCOUNT_FILES = ("etc/group", "etc/gshadow", "etc/passwd", "etc/shadow")
#: Written by package managers and shells; a rebuild makes its own.
_IGNORED_PREFIXES = (
    "etc/ld.so.cache",
    "opt/conda/CACHEDIR.TAG",
    "opt/conda/pkgs/",
    "run/",
    "tmp/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/dpkg/",
    "var/log/",
    "var/tmp/",
    "workspace/",
)
#: The same, in home directories.
_IGNORED_AT_HOME = (
    ".bash_history",
    ".cache/",
    ".conda/",
    ".ipython/",
    ".jupyter/lab/workspaces/",
    ".jupyter/migrated",
    ".lesshst",
    ".local/share/jupyter/",
    ".npm/",
    ".python_history",
    ".viminfo",
    ".wget-hsts",
)
#: Reasons for which nothing can be done.
DEVICE = "a device, which no build can make"
SOCKET = "a socket, which no image can contain"


class UnreproducedChange(NamedTuple):
    """A change that no line of a build file makes, and why."""

    what: str
    reason: str


#: Writes the writable layer to a new directory, given the image's; returns what it cannot write.
WriteChanges = Callable[[Path, LayerView], tuple[UnreproducedChange, ...]]


def list_layer(upper: Path) -> Iterator[str]:
    """Yield what is in a writable layer, except what this account cannot read."""
    for directory, _, names in os.walk(upper):
        place = os.path.relpath(directory, upper)
        yield from (os.path.normpath(f"{place}/{name}") for name in names)


def copy_changes(source: Path, target: Path, _: LayerView) -> tuple[UnreproducedChange, ...]:
    """Copy a tree with owners, whiteouts and attributes, sharing blocks where possible."""
    command = ["cp", "-a", "--reflink=auto", str(source), str(target)]
    # Names of files need not be UTF-8.
    completed = run_program(command, env={**os.environ, "LC_ALL": "C"})
    if completed.returncode:
        details = tuple(completed.stderr.decode(errors="replace").splitlines()[:5])
        if ran_out_of_space(target.parent, details):
            raise disk_full_error("the store, to which the changes are copied", output=details)
        raise OutsideError(
            "cannot copy the environment's writable layer",
            details=details,
            hint="stop the environment first with `danlu stop`, so that no file changes meanwhile",
        )
    return list_sockets(target)


def list_sockets(upper: Path) -> tuple[UnreproducedChange, ...]:
    """Return the sockets of a layer."""
    return tuple(
        UnreproducedChange(f"/{path}", SOCKET)
        for path, entry in walk_layer(upper)
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode) and not is_volatile(path)
    )


def is_volatile(path: str) -> bool:
    """Return whether a change belongs to no build: caches, logs, temporary files."""
    place = f"{path}/"
    if place.startswith(_IGNORED_PREFIXES) or "/__pycache__/" in f"/{place}":
        return True
    home = "root/" if place.startswith("root/") else "/".join(place.split("/")[:2]) + "/"
    is_home = place.startswith(("root/", "home/"))
    return is_home and place.removeprefix(home).startswith(_IGNORED_AT_HOME)
