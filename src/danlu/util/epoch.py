"""A file that changes whenever some state does, so that one read detects a change."""

from __future__ import annotations

import os

_EPOCH_SIZE = 8


def bump_epoch(path: str | os.PathLike[str]) -> None:
    """Give the file new content. It is written in place, which works on a full disk too."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, os.urandom(_EPOCH_SIZE), 0)
    finally:
        os.close(descriptor)


def read_epoch(path: str | os.PathLike[str]) -> str:
    """Return the file's content in hexadecimal, or ``""`` if it does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read(_EPOCH_SIZE).hex()
    except OSError:
        return ""
