"""A project: the build file, its function, the lock beside it, and what they say."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.errors import Span, UsageError
from danlu.util.files import write_atomic
from danlu.util.space import told

if TYPE_CHECKING:
    from danlu.environment.inputs import Inputs
    from danlu.environment.lock import Lock
    from danlu.environment.types import Environment
    from danlu.lang.types import Included
    from danlu.util.paths import Paths

__all__ = ["BUILD_FILES", "Project"]

#: The build files that are looked for where none is named, in this order.
BUILD_FILES = ("build.envd", "build.py")

_DEFAULT_FUNCTION = "build"


@dataclass(frozen=True)
class Project:
    """A build file in its directory, and the function of it that is meant."""

    directory: Path
    file: str
    function: str
    paths: Paths
    #: The project's texts that evaluating read, by their path: :meth:`environment` fills it.
    texts: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def open(
        cls, file: str | None = None, *, directory: Path | None = None, paths: Paths | None = None
    ) -> Project:
        """The project that ``-f FILE[:FUNC]`` names (default: that of ``directory``).

        ``file`` may name a directory. Raises :class:`UsageError` where there is no build file.
        """
        from danlu.util.paths import Paths

        base = (directory or Path.cwd()).absolute()
        name, _, function = (file or "").partition(":")
        path = base / name if name else base
        if path.is_dir():
            found = next((path / one for one in BUILD_FILES if (path / one).is_file()), None)
            if found is None:
                raise UsageError(
                    f"there is no build.envd or build.py in {path}",
                    hint="`danlu init` writes one, `-f FILE` names another",
                )
            path = found
        if not path.is_file():
            raise UsageError(f"there is no {name}", hint="`-f FILE[:FUNCTION]` names a build file")
        chosen = function or _DEFAULT_FUNCTION
        return cls(path.parent, path.name, chosen, paths or Paths.of())

    @property
    def lock_path(self) -> Path:
        """``danlu.lock`` beside the build file."""
        return self.directory / "danlu.lock"

    @cached_property
    def lock_text(self) -> str:
        """The text of the lock, empty where there is none."""
        try:
            return self.lock_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.lock_path.name} is not text: {error}") from error

    @cached_property
    def lock(self) -> Lock:
        """The lock as it is on disk; an empty one where there is none."""
        from danlu.environment.lock import Lock
        from danlu.resolve.lockfile import read_lock

        if not self.lock_text:
            return Lock()

        return read_lock(self.lock_text, self.lock_path.name)

    def write_lock(self, lock: Lock) -> None:
        """Replace the lock on disk."""
        from danlu.resolve.lockfile import write_lock

        with told(str(self.lock_path), hint="free some; what was fetched for the lock is kept"):
            write_atomic(self.lock_path, write_lock(lock).encode())

    def environment(
        self,
        *,
        offline: bool = False,
        refresh: bool = False,
        meanwhile: Iterable[object] = (),
    ) -> Environment:
        """What the function describes.

        ``refresh`` looks again for the commits that ``include`` means; otherwise the locked ones
        are read, which needs no network once they were fetched. ``meanwhile`` is as in
        :func:`danlu.lang.evaluate`.
        """
        from danlu.lang import evaluate

        loader = ProjectLoader(self, offline=offline, refresh=refresh)
        return evaluate(self.file, self.function, loader=loader, meanwhile=meanwhile)

    def inputs(self, environment: Environment) -> Inputs:
        """Digests of the project's files that ``environment`` names.

        Raises :class:`UsageError` with the line that names a file which is not there.
        """
        from danlu.environment.inputs import Inputs, named_files, needs_context
        from danlu.sources.context import digest_of_path

        files: dict[str, str] = {}
        for path in named_files(environment):
            try:
                files[path] = digest_of_path(self.directory, path)
            except UsageError as error:
                error.span = _naming(environment, path)
                raise
        context = digest_of_path(self.directory, ".") if needs_context(environment) else ""
        return Inputs(files, self._packages(environment), context)

    def _packages(self, environment: Environment) -> dict[str, str]:
        """Digests of all that Python packages draw in from this machine, by path."""
        if not environment.python_packages:
            return {}
        from danlu.sources.context import digest_of_path
        from danlu.sources.pypi.requirements import drawn_in

        paths = drawn_in(environment.python_packages, self.directory)
        found = {}
        for path in paths:
            name = os.path.relpath(path, self.directory)
            outside = name.startswith("..")
            if path.exists():
                base, below = (path.parent, path.name) if outside else (self.directory, name)
                found[name] = digest_of_path(base, below)
        return found


def _naming(environment: Environment, path: str) -> Span | None:
    """The line of the build file that names ``path``."""
    for packages in environment.python_packages:
        if path == packages.requirements or path in packages.local_wheels:
            return packages.span
    return next(
        (step.span for step in environment.steps if getattr(step, "source", None) == path), None
    )


@dataclass(frozen=True)
class ProjectLoader:
    """Gives the language the files of a project, and the repositories it includes."""

    project: Project
    offline: bool = False
    refresh: bool = False

    def read(self, path: str) -> str:
        """The text of a file of the project; :class:`FileNotFoundError` where there is none."""
        text = (self.project.directory / path).read_text(encoding="utf-8")
        self.project.texts[path] = text
        return text

    def include(self, url: str, ref: str) -> Included:
        """The build files of a repository, at the locked commit if the lock knows it."""
        from danlu.sources.git import read_repository

        locked = "" if self.refresh else self._locked(url, ref)
        return read_repository(
            url, ref, commit=locked, cache=self.project.paths.cache / "git", offline=self.offline
        )

    def _locked(self, url: str, ref: str) -> str:
        section = self.project.lock.functions.get(self.project.function)
        for include in section.includes if section else ():
            if (include.url, include.ref) == (url, ref):
                return include.commit
        return ""
