"""Answer what an interpreter asks for, through the caller's loader; remember all texts."""

from __future__ import annotations

from collections.abc import Mapping

from danlu.errors import UsageError
from danlu.lang.sources import Sources, clean
from danlu.lang.types import Included, Loader

__all__ = ["Desk"]


class Desk:
    """The :class:`danlu.lang.outcome.Channel` that stands before a loader.

    It asks for a thing once: a file is evaluated more than once and must not change meanwhile.
    """

    def __init__(self, loader: Loader, sources: Sources) -> None:
        self._loader = loader
        self._sources = sources
        self._texts: dict[str, str] = {}
        self._repositories: dict[tuple[str, str], Included] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None where there is none."""
        if path in self._texts:
            return self._texts[path]
        try:
            text = self._loader.read(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no text in UTF-8: {error.reason}") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        self._sources.add(path, clean(text))
        self._texts[path] = text
        return text

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        included = self._repositories.get((url, ref))
        if included is None:
            included = self._repositories[url, ref] = self._loader.include(url, ref)
        for path, text in included.files.items():
            self._sources.add(f"{url}/{path}", clean(text), stranger=True)
        return included.commit, dict(included.files)
