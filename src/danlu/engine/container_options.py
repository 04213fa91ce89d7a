"""Options that ``danlu run`` and ``danlu up`` have in common, as the user writes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.sandbox.types import Mount
from danlu.util.danlu_program import read_variable
from danlu.util.human import parse_size

if TYPE_CHECKING:
    from danlu.environment.runtime_settings import RuntimeMount

_MAX_SHM_SIZE = 1 << 50


def select_mounts(
    declared: Sequence[RuntimeMount], given: Sequence[Mount]
) -> tuple[RuntimeMount, ...]:
    """Return the mounts of the build file whose targets the command line does not use."""
    targets = {os.path.normpath(mount.target) for mount in given}
    return tuple(mount for mount in declared if os.path.normpath(mount.target) not in targets)


def parse_shm_size(text: str) -> int:
    """Parse the size of ``/dev/shm`` (``512MiB``, ``2G``) to bytes.

    Raises :class:`UsageError` if it is invalid or zero.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise UsageError(f"--shm-size: {error}") from error
    if not 0 < size <= _MAX_SHM_SIZE:
        raise UsageError(f"--shm-size: invalid size {text!r}", hint="use a size such as 512MiB")
    return size


def parse_volume(text: str) -> Mount:
    """Parse ``SRC:DST[:ro|:rw]``.

    Raises :class:`UsageError` if it is invalid or the source does not exist.
    """
    given, target, readonly = split_volume(text)
    source = Path(given).expanduser().absolute()
    if not source.exists():
        raise UsageError(
            f"cannot mount {source}: no such file or directory",
            hint="create it, or name another directory with --volume",
        )
    return Mount(target, source, readonly=readonly)


def split_volume(text: str) -> tuple[str, str, bool]:
    """Split ``SRC:/DST[:ro|:rw]`` into source, target and whether it is read-only.

    Raises :class:`UsageError` if it is invalid.
    """
    parts = text.split(":")
    mode = parts.pop() if len(parts) == 3 else "rw"
    if len(parts) != 2 or mode not in ("ro", "rw") or not parts[0] or parts[1][:1] != "/":
        raise UsageError(f"invalid volume {text!r}", hint="use SRC:/DST or SRC:/DST:ro")
    return parts[0], parts[1], mode == "ro"


def parse_security(texts: Sequence[str]) -> str:
    """Parse ``seccomp=PROFILE`` options; the last one wins.

    Returns ``default``, ``unconfined`` or the absolute path of a profile. Raises
    :class:`UsageError` for any other option.
    """
    profile = ""
    for text in texts:
        name, _, value = text.partition("=")
        if name != "seccomp" or not value:
            raise UsageError(
                f"invalid security option {text!r}",
                hint="use seccomp=unconfined, seccomp=default or seccomp=PROFILE.json",
            )
        known = value in ("default", "unconfined")
        profile = value if known else str(Path(value).expanduser().absolute())
    return profile


def parse_variable(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``, or ``NAME`` for this process's value; raise :class:`UsageError`."""
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"invalid variable {text!r}", hint="use NAME=VALUE or NAME")
    return name, value if equals else read_variable(name) or ""
