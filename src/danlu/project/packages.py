"""Add packages to a project and remove them: in its build file, or in the files that it names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import requirement_name
from danlu.errors import BuildFileError, DanluError, Span, UsageError
from danlu.project.build_file_text import (
    find_argument,
    find_calls,
    find_place_of_call,
    insert_lines,
    own_calls,
    parse_function,
    remove_statement,
    replace_node,
)
from danlu.project.lock import LockReport, update_project_lock
from danlu.project.requirements_text import (
    add_requirement,
    edit_requirements,
    list_requirements,
)
from danlu.project.string_list import (
    add_item,
    locate_node,
    parse_items,
    read_text,
    remove_item,
    replace_item,
)
from danlu.util.safe_paths import ProjectTree, write_beneath

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.graph.progress import Progress
    from danlu.project.project import Project

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_APT_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=\S+)?")


@dataclass(frozen=True)
class PackageKind:
    """A build function that installs packages; ``files`` are its arguments that name files."""

    function: str
    noun: str
    files: tuple[str, ...] = ()

    def parse_name(self, package: str) -> str:
        """Return the name under which packages are compared."""
        if self is APT:
            return package.partition("=")[0]
        if self is CONDA:
            from danlu.sources.conda.match_spec import parse_match_spec, split_spec  # large

            return str(parse_match_spec(split_spec(package)[1]).name.normalized)
        return requirement_name(package)

    def check(self, package: str) -> None:
        """Raise :class:`UsageError` if ``package`` is not one."""
        if self is PYTHON:
            try:
                Requirement(package)
            except InvalidRequirement as error:
                raise UsageError(
                    f"invalid requirement {package!r}: {str(error).splitlines()[0]}",
                    hint="use a name, such as numpy, or 'numpy>=2'; other requirements, such as "
                    "paths, are written into the build file",
                ) from error
        elif self is APT and not _APT_NAME.fullmatch(package):
            raise UsageError(f"invalid {self.noun} {package!r}")
        else:
            self.parse_name(package)


PYTHON = PackageKind("install.python_packages", "Python package", ("pyproject", "requirements"))
APT = PackageKind("install.apt_packages", "system package")
CONDA = PackageKind("install.conda_packages", "conda package", ("env_file",))
KINDS = {"python": PYTHON, "apt": APT, "conda": CONDA}


@dataclass(frozen=True)
class PackagesReport:
    """The files that were changed, the packages that needed no change, and the new lock."""

    files: tuple[str, ...]
    unchanged: tuple[str, ...]
    lock: LockReport


@dataclass
class ProjectEdit:
    """The texts of a project's files while packages are added and removed."""

    project: Project
    kind: PackageKind
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    def read(self, path: str) -> str:
        """Return the text of a file of the project, as far as it was edited."""
        if path not in self.after:
            try:
                with ProjectTree(self.project.directory) as tree:
                    text = tree.read_text(path)
            except (FileNotFoundError, UnicodeDecodeError) as error:
                raise UsageError(f"cannot read {path}: {error}") from error
            self.before[path] = self.after[path] = text
        return self.after[path]

    @property
    def changed_files(self) -> tuple[str, ...]:
        """The files whose text is another one now."""
        return tuple(path for path, text in self.after.items() if text != self.before[path])

    def add(self, package: str) -> bool:
        """Add a package, or replace its version; return whether that changed anything."""
        name = self.kind.parse_name(package)
        current = self._find_current(name)
        if current is None:
            self._add_new(package)
        elif current == package or _NAME.fullmatch(package):
            return False
        else:
            self._replace_package(name, package)
        return True

    def remove(self, name: str) -> None:
        """Remove a package. Raises :class:`UsageError` if the project does not name it."""
        if not self._replace_package(self.kind.parse_name(name), ""):
            files = " and ".join((self.project.file, *self._list_files()))
            raise UsageError(
                f"{name} is not among the {self.kind.noun}s of {files}",
                hint="packages that are only dependencies of others cannot be removed",
            )
        while self._replace_package(self.kind.parse_name(name), ""):
            pass

    # -- finding

    def _parse_build_file(self) -> ast.FunctionDef:
        text = self.read(self.project.file)
        return parse_function(text, self.project.file, self.project.function)

    def _find_lists(self) -> Iterator[tuple[ast.Call, ast.List]]:
        for call in find_calls(self._parse_build_file(), self.kind.function):
            names = find_argument(call, "name", 0)
            if isinstance(names, ast.List):
                yield call, names

    def _list_files(self) -> list[str]:
        """Return the files from which the function's calls take packages."""
        calls = own_calls(self._parse_build_file(), self.kind.function)
        values = (find_argument(call, name) for call in calls for name in self.kind.files)
        return [path for value in values if value is not None and (path := read_text(value))]

    def _find_current(self, name: str) -> str | None:
        for _, names in self._find_lists():
            for item in names.elts:
                text = read_text(item)
                if text is not None and self.kind.parse_name(text) == name:
                    return text
        if self.kind is not PYTHON:
            return None
        found = [list_requirements(self.read(path), path) for path in self._list_files()]
        return next((requirements[name] for requirements in found if name in requirements), None)

    # -- editing

    def _replace_package(self, name: str, package: str) -> bool:
        """Replace the package ``name``, or remove it; return whether it was found."""
        for call, names in self._find_lists():
            for index, item in enumerate(names.elts):
                text = read_text(item)
                if text is not None and self.kind.parse_name(text) == name:
                    self._change_item(call, names, index, package)
                    return True
        for path in self._list_files() if self.kind is PYTHON else ():
            changed = edit_requirements(self.read(path), path, name, package)
            if changed is not None:
                self.after[path] = changed
                return True
        return False

    def _change_item(self, call: ast.Call, names: ast.List, index: int, package: str) -> None:
        if package:
            self._edit_list(names, lambda array: replace_item(array, index, package))
            return
        text = self.read(self.project.file)
        if len(names.elts) == 1 and len(call.args) + len(call.keywords) == 1:
            changed = remove_statement(text, self._parse_build_file(), call)
            if changed != text:
                self.after[self.project.file] = changed
                return
        self._edit_list(names, lambda array: remove_item(array, index))

    def _add_new(self, package: str) -> None:
        function = self._parse_build_file()
        calls = list(own_calls(function, self.kind.function))
        lists = [names for call in calls if (names := find_argument(call, "name", 0))]
        literal = [names for names in lists if isinstance(names, ast.List)]
        filled = [names for names in literal if names.elts]
        files = self._list_files()
        if filled:
            self._edit_list(filled[-1], lambda array: add_item(array, package))
        elif files and self.kind is PYTHON:
            self.after[files[0]] = add_requirement(self.read(files[0]), files[0], package)
        elif literal and not files:
            self._edit_list(literal[-1], lambda array: add_item(array, package))
        elif any(find_calls(function, self.kind.function)):
            raise self._code_error(function, files, package)
        else:
            self.after[self.project.file] = insert_lines(
                self.read(self.project.file),
                self.project.file,
                self.project.function,
                (self._format_call(package),),
                find_place=find_place_of_call,
            )

    def _edit_list(self, names: ast.List, edit: Callable[[str], str]) -> None:
        text = self.read(self.project.file)
        begin, end = locate_node(text, names)
        array = edit(text[begin:end])
        parse_items(array)
        self.after[self.project.file] = replace_node(text, names, array)
        self._parse_build_file()

    def _format_call(self, package: str) -> str:
        return f"{self.kind.function}(name=[{json.dumps(package, ensure_ascii=False)}])"

    def _code_error(
        self, function: ast.FunctionDef, files: Sequence[str], package: str
    ) -> UsageError:
        call = next(find_calls(function, self.kind.function))
        span = Span(self.project.file, call.lineno, call.col_offset + 1)
        if files:
            return BuildFileError(
                f"the {self.kind.noun}s are listed in {files[0]}, which danlu does not edit",
                hint=f"add {package} there, then run `danlu lock`",
                span=span,
            )
        return BuildFileError(
            f"the {self.kind.noun}s are listed by code, which danlu does not edit",
            hint=f"add the line {self._format_call(package)}, then run `danlu lock`",
            span=span,
        )


def change_packages(
    project: Project,
    kind: PackageKind,
    *,
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
    settings: Settings,
    progress: Progress,
) -> PackagesReport:
    """Add and remove packages, and update the lock.

    If they cannot be resolved, or danlu is interrupted, all files are as before. Raises
    :class:`UsageError` if a package is invalid or not found, or a file cannot be edited.
    """
    for package in added:
        kind.check(package)
    with project.update_exclusively(progress):
        edit = ProjectEdit(project, kind)
        unchanged = tuple(package for package in added if not edit.add(package))
        for name in removed:
            edit.remove(name)
        try:
            with _write_texts(edit):
                report = update_project_lock(project, settings, progress)
        except DanluError as error:
            files = " and ".join(edit.changed_files or (project.file,))
            error.details += (f"{files} is as before",)
            raise
        return PackagesReport(edit.changed_files, unchanged, report)


def add_to_requirements_file(project: Project, packages: Sequence[str]) -> tuple[str, ...]:
    """Add Python packages to the file of requirements that `danlu add` would edit; return it.

    Returns nothing, and changes nothing, if that is the build file, or if none can be edited. The
    lock is not updated.
    """
    with project.update_exclusively(lambda event: None):
        edit = ProjectEdit(project, PYTHON)
        try:
            for package in packages:
                edit.add(package)
        except UsageError:
            return ()
        if project.file in edit.changed_files:
            return ()
        with _write_texts(edit):
            return edit.changed_files


@contextmanager
def _write_texts(edit: ProjectEdit) -> Iterator[None]:
    """Write the changed files; write what they had if the block fails.

    A file that has been edited since then is left unchanged.
    """
    directory = edit.project.directory
    targets: dict[str, tuple[str, int]] = {}
    with ProjectTree(directory) as tree:
        for path in edit.changed_files:
            real = tree.resolve(path)
            targets[path] = (str(real.relative_to(directory)), real.stat().st_mode & 0o7777)
    try:
        for path, (target, mode) in targets.items():
            write_beneath(directory, target, edit.after[path].encode(), mode=mode)
        yield
    except BaseException:
        for path, (target, mode) in targets.items():
            if (directory / target).read_bytes() == edit.after[path].encode():
                write_beneath(directory, target, edit.before[path].encode(), mode=mode)
        raise
