"""What the language asks of its caller: the text of files and of included repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

__all__ = ["Included", "Loader"]


class Included(msgspec.Struct, frozen=True):
    """A repository as ``include()`` sees it: its commit, and the text of each ``*.envd`` by path.

    ``commit`` is the full object name; paths are relative to the repository's root, with ``/``.
    """

    commit: str
    files: Mapping[str, str]


class Loader(Protocol):
    """Where the language gets text from; it opens no file and no connection itself."""

    def read(self, path: str) -> str:
        """Return the text of a file of the project; raise ``FileNotFoundError`` without it."""
        ...

    def include(self, url: str, ref: str) -> Included:
        """Return the repository at ``url``, at ``ref`` (empty: the lock's commit or the head)."""
        ...
