"""Where the language gets texts from: the caller's loader, asked once for each text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from danlu.errors import DanluError, UsageError
from danlu.lang.source_files import SourceFiles, normalize_newlines


class RepositoryContent(msgspec.Struct, frozen=True):
    """A repository at a commit, and the text of each ``*.envd`` by path.

    ``commit`` is the full object name; paths are relative to the repository's root, with ``/``.
    """

    commit: str
    files: Mapping[str, str]


class SourceLoader(Protocol):
    """What the language asks of its caller; it opens no file and no connection itself."""

    def read(self, path: str) -> str:
        """Return the text of a file of the project. Raises ``FileNotFoundError``."""
        ...

    def include(self, url: str, ref: str) -> RepositoryContent:
        """Return the repository at ``url``, at ``ref`` (empty: the lock's commit or the head)."""
        ...


class CachingLoader:
    """The :class:`~danlu.lang.protocol.SourceProvider` of an interpreter, over a loader.

    It asks for everything once: a file is evaluated more than once if it includes repositories, and
    must not change in between.
    """

    def __init__(self, loader: SourceLoader, sources: SourceFiles) -> None:
        self._loader = loader
        self._sources = sources
        self._texts: dict[str, str] = {}
        self._repositories: dict[tuple[str, str], RepositoryContent] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None if it does not exist."""
        if path in self._texts:
            return self._texts[path]
        try:
            text = self._loader.read(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except UsageError as error:
            error.span = error.span or self._sources.find_load(path)
            raise
        except UnicodeDecodeError as error:
            raise UsageError(f"cannot read {path}: not UTF-8: {error.reason}") from error
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        self._sources.add(path, normalize_newlines(text))
        self._texts[path] = text
        return text

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        content = self._repositories.get((url, ref))
        if content is None:
            try:
                content = self._repositories[url, ref] = self._loader.include(url, ref)
            except DanluError as error:
                error.span = error.span or self._sources.find_include(url)
                raise
        for path, text in content.files.items():
            self._sources.add(f"{url}/{path}", normalize_newlines(text), is_foreign=True)
        return content.commit, dict(content.files)
