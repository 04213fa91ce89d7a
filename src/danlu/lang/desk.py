"""Answer what an interpreter asks for, through the caller's loader; remember all texts."""

from __future__ import annotations

from collections.abc import Mapping

from danlu.errors import UsageError
from danlu.lang.sources import Sources, clean
from danlu.lang.types import Loader

__all__ = ["Desk"]


class Desk:
    """The :class:`danlu.lang.outcome.Channel` that stands before a loader."""

    def __init__(self, loader: Loader, sources: Sources) -> None:
        self._loader = loader
        self._sources = sources

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None where there is none."""
        try:
            text = self._loader.read(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no text in UTF-8: {error.reason}") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        self._sources.add(path, clean(text))
        return text

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        included = self._loader.include(url, ref)
        for path, text in included.files.items():
            self._sources.add(f"{url}/{path}", clean(text), stranger=True)
        return included.commit, dict(included.files)
