"""A project: its build file, the lock next to it, and the digests of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replace_fields

from danlu.errors import UsageError
from danlu.util.disk_full import translate_disk_full
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock, try_file_lock
from danlu.util.paths import Paths
from danlu.util.safe_paths import ProjectTree

# An unchanged build opens the project, but loads neither the language nor the resolver: what
# evaluates, locks and digests is imported by the methods that do it.
if TYPE_CHECKING:
    from danlu.environment.lock import Lock
    from danlu.environment.types import Environment, ProjectDigests
    from danlu.graph.progress import Progress
    from danlu.lang.source_files import RepositoryContent
    from danlu.sources.file_digests import FileDigests

#: The names of build files, in order of preference.
BUILD_FILES = ("build.envd", "build.py")

DEFAULT_FUNCTION = "build"


class LockFile:
    """``danlu.lock`` of a project: read once, when it is needed, and replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text: str | None = None
        self._content: Lock | None = None

    @property
    def text(self) -> str:
        """The text of the lock, empty if it does not exist."""
        if self._text is None:
            try:
                with ProjectTree(self.path.parent) as tree:
                    self._text = tree.read_text(self.path.name)
            except FileNotFoundError:
                self._text = ""
            except UnicodeDecodeError as error:
                raise UsageError(f"{self.path.name} is not text: {error}") from error
        return self._text

    @property
    def content(self) -> Lock:
        """The decoded lock; empty if the file does not exist."""
        from danlu.environment.lock import Lock
        from danlu.resolve.lockfile import read_lock

        if self._content is None:
            self._content = read_lock(self.text, self.path.name) if self.text else Lock()
        return self._content

    def stage(self, lock: Lock) -> None:
        """Use ``lock`` instead of the one on disk, until :meth:`write`."""
        self._content = lock

    def write(self, lock: Lock) -> None:
        """Replace the lock on disk, atomically."""
        from danlu.resolve.lockfile import write_lock

        text = write_lock(lock)
        with translate_disk_full(
            str(self.path), hint="free some space; downloads for the lock are kept"
        ):
            write_atomic(self.path, text.encode())
        # Not read from the disk again: another process may have replaced the file since then, and
        # what is built now is recorded with the text that it was built from.
        self._text, self._content = text, None

    def read_again(self) -> None:
        """Read the file again when it is needed next: another process may have replaced it."""
        self._text = self._content = None


@dataclass(frozen=True)
class Project:
    """A function of a build file."""

    directory: Path
    file: str
    function: str
    paths: Paths
    #: The values of the function's parameters that are not their defaults, by name.
    arguments: Mapping[str, bool | int | float | str] = field(default_factory=dict, hash=False)
    #: The function with these values, as :attr:`target`; empty without any.
    variant: str = ""
    #: Whether the image must work without the project: editable packages are copied into it.
    portable: bool = False
    #: The files that evaluation read, by path; filled by :meth:`environment`.
    texts: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def open(
        cls,
        file: str | None = None,
        *,
        directory: Path | None = None,
        paths: Paths | None = None,
        settings: Sequence[str] = (),
    ) -> Project:
        """Open the project that ``-f FILE[:FUNC]`` names (default: that of ``directory``).

        ``file`` may be a directory; ``FUNC`` may have values, as in ``build(gpu=true)``, and
        ``settings`` are further ones (``gpu=true``). Raises :class:`UsageError` if there is no
        build file, and for parameters that its function does not have.
        """
        base = (directory or Path.cwd()).absolute()
        name, _, function = (file or "").partition(":")
        path = base / name if name else base
        if path.is_dir():
            build_file = next(
                (path / candidate for candidate in BUILD_FILES if (path / candidate).is_file()),
                None,
            )
            if build_file is None:
                raise UsageError(
                    f"no build.envd or build.py found in {path}",
                    hint="run `danlu init` to create one, or name a build file with -f",
                )
            path = build_file
        if not path.is_file():
            raise UsageError(f"build file {name} not found", hint="use -f FILE[:FUNCTION]")
        project = cls(path.parent, path.name, function or DEFAULT_FUNCTION, paths or Paths.of())
        if "(" in function or settings:
            return project.with_parameters(settings)
        return project

    def with_parameters(self, settings: Sequence[str]) -> Project:
        """Return the project with values for its function's parameters; see :meth:`open`."""
        from danlu.lang.build_parameters import (
            bind_parameters,
            format_target,
            parse_settings,
            parse_target,
        )

        function, values = parse_target(self.function)
        function = function or DEFAULT_FUNCTION
        values |= parse_settings(settings)
        with ProjectTree(self.directory) as tree:
            text = tree.read_text(self.file)
        arguments = bind_parameters(text, self.file, function, values)
        variant = format_target(function, arguments)
        return replace(self, function=function, arguments=arguments, variant=variant)

    @property
    def target(self) -> str:
        """The function and its arguments, such as ``build(gpu=True)``: its name in the lock."""
        return self.variant or self.function

    @property
    def lock_path(self) -> Path:
        """``danlu.lock`` next to the build file."""
        return self.directory / "danlu.lock"

    @cached_property
    def lock_file(self) -> LockFile:
        """The lock on disk, as it was when it was read first."""
        return LockFile(self.lock_path)

    @property
    def lock_text(self) -> str:
        """The text of the lock, empty if it does not exist."""
        return self.lock_file.text

    @property
    def lock(self) -> Lock:
        """The lock on disk; empty if it does not exist."""
        return self.lock_file.content

    @contextmanager
    def update_exclusively(self, progress: Progress) -> Iterator[bool]:
        """Update the lock or the build file while no other danlu process of this user does.

        Waits for the one that does. The lock is read again inside the block. Yields whether the
        project may have changed since it was read.
        """
        from danlu.graph.progress import Message

        key = hashlib.sha256(os.fsencode(os.path.realpath(self.directory))).hexdigest()[:32]
        path = self.paths.state / "projects" / f"{key}.lock"
        with ExitStack() as held:
            before = self.lock_text
            is_free = held.enter_context(try_file_lock(path))
            if not is_free:
                text = f"waiting for another danlu process that updates {self.lock_path.name}…"
                progress(Message(text, 0.0))
                held.enter_context(file_lock(path))
            self.lock_file.read_again()
            yield not is_free or self.lock_text != before

    def environment(
        self,
        *,
        offline: bool = False,
        refresh: bool = False,
        while_waiting: Callable[[], object] | None = None,
    ) -> Environment:
        """Evaluate the build function.

        ``refresh`` resolves the refs of ``include`` again; otherwise the locked commits are used,
        which needs no network once they are cached. ``while_waiting`` is as in
        :func:`danlu.lang.evaluation.evaluate`.
        """
        from danlu.lang.evaluation import evaluate

        loader = ProjectLoader(self, offline=offline, refresh=refresh)
        return evaluate(
            self.file,
            self.function,
            arguments=self.arguments,
            loader=loader,
            while_waiting=while_waiting,
        )

    def inputs(self, environment: Environment) -> ProjectDigests:
        """Return the digests of the project's files that ``environment`` names.

        Raises :class:`UsageError` with the line of the build file if a file is missing.
        """
        from danlu.sources.file_digests import FileDigests

        digests = FileDigests.of_project(self.directory, self.paths.cache)
        result = self._digest_inputs(environment, digests)
        sources = {
            name: self._digest_inputs(source, digests)
            for name, source in environment.sources.items()
        }
        digests.save()
        return replace_fields(result, sources=sources)

    def _digest_inputs(self, environment: Environment, digests: FileDigests) -> ProjectDigests:
        """Return the digests of one environment, without those of its sources."""
        from danlu.environment.types import ProjectDigests
        from danlu.sources.build_context import digest_path

        files: dict[str, str] = {}
        for path, span in environment.project_files().items():
            try:
                files[path] = digest_path(self.directory, path, digests)
            except UsageError as error:
                error.span = span
                raise
        context = ""
        if environment.uses_project:
            context = digest_path(self.directory, ".", digests)
        packages = self._digest_packages(environment, digests)
        return replace_fields(ProjectDigests(files, context=context), **packages)

    def _digest_packages(self, environment: Environment, digests: FileDigests) -> dict[str, Any]:
        """Return the digests of the project's files that its Python packages are installed from.

        They are the fields of :class:`ProjectDigests`, by name.
        """
        if not environment.python_packages:
            return {}
        from danlu.sources.pypi.indexes import read_index_settings
        from danlu.sources.pypi.requirements import (
            declared_paths,
            list_absent_locks,
            list_editable_paths,
        )
        from danlu.sources.pypi.source_tree import digest_source

        declared = environment.python_packages
        # Raises if an index is a directory outside the project.
        read_index_settings(environment.pip_index, declared, self.directory)
        in_place = list_editable_paths(declared, self.directory)
        packages: dict[str, str] = {}
        used_in_place: list[Path] = []
        for path in declared_paths(declared, self.directory):
            if path in in_place and path.is_dir():
                used_in_place.append(path)
            elif path.exists():
                name = os.path.relpath(path, self.directory)
                packages[name] = digest_source(self.directory, path, digests)
        absent = list_absent_locks(declared, self.directory)
        if not used_in_place:
            return {"packages": packages, "absent": absent}
        from danlu.sources.pypi.editable_metadata import digest_metadata, locate_editable

        editable: dict[str, str] = {}
        copies: dict[str, str] = {}
        for path in used_in_place:
            name = os.path.relpath(path, self.directory)
            editable[name] = digest_metadata(self.directory, path)
            if self.portable:
                place = locate_editable(self.directory, path)
                copies[place] = digest_source(self.directory, path, digests)
        return {"packages": packages, "editable": editable, "copies": copies, "absent": absent}


@dataclass(frozen=True)
class ProjectLoader:
    """Loads the files of a project and the repositories it includes, for the language."""

    project: Project
    offline: bool = False
    refresh: bool = False

    def read(self, path: str) -> str:
        """Return the text of a file; raises :class:`FileNotFoundError` if it does not exist."""
        with ProjectTree(self.project.directory) as tree:
            text = tree.read_text(path)
        self.project.texts[path] = text
        return text

    def include(self, url: str, ref: str) -> RepositoryContent:
        """Return the build files of a repository, at the locked commit if there is one."""
        from danlu.sources.git import read_repository

        locked = "" if self.refresh else self._locked_commit(url, ref)
        return read_repository(
            url, ref, commit=locked, cache=self.project.paths.cache / "git", offline=self.offline
        )

    def _locked_commit(self, url: str, ref: str) -> str:
        from danlu.lang.functions.include import INCLUDES

        functions = self.project.lock.functions
        # The functions that this one copies from may be the only ones that include it.
        for lock in (functions.get(self.project.target), *functions.values()):
            if commit := INCLUDES.find_commit(INCLUDES.pins(lock), url, ref):
                return commit
        return ""
