"""A team's templates: directories of files, on this machine or in a git repository.

A template is untrusted input. Its files are copied as they are and none of them is executed; all
checks come before the first file is written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.sources.git import CommitFile, list_files, read_blobs, resolve_commit
from danlu.util.files import write_atomic
from danlu.util.human import format_size
from danlu.util.safe_paths import ProjectTree
from danlu.util.sanitize import escape_unprintable
from danlu.util.suggest import find_nearest_name
from danlu.util.urls import mask_credentials, strip_credentials

BUILD_FILES = ("build.envd", "build.py")

MAX_FILES = 1000
MAX_FILE_BYTES = 16 << 20
MAX_TEMPLATE_BYTES = 64 << 20
_MAX_LISTED_NAMES = 8

#: ``git@host:team/repository``, which has no scheme (git-clone(1), "GIT URLS").
_SCP_ADDRESS = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")
_PATH_AFTER_SUFFIX = re.compile(r"(.+?\.git):([^:]+)")

_REGULAR, _PROGRAM = "100644", "100755"


class TemplateAddress(msgspec.Struct, frozen=True):
    """Where a template is: ``path`` in a git repository, or on this machine if ``url`` is empty."""

    url: str
    ref: str
    path: str


class TemplateFile(msgspec.Struct, frozen=True):
    """A file of a template; ``mode`` is git's: ``100644`` or ``100755``."""

    path: str
    mode: str
    content: bytes


class TeamTemplate(msgspec.Struct, frozen=True):
    """The files of a template, and where they come from: the commit is part of ``source``."""

    source: str
    files: tuple[TemplateFile, ...]

    @property
    def build_file(self) -> TemplateFile:
        """The template's build file; ``build.envd`` wins, as it does for ``danlu build``."""
        found = {file.path: file for file in self.files}
        return next(found[name] for name in BUILD_FILES if name in found)


def parse_template_address(text: str) -> TemplateAddress | None:
    """Return the directory or repository that ``--template`` names; None for a template of danlu.

    A repository is ``URL``, ``URL#REF``, ``URL#REF:PATH`` (as for ``docker build``) or, if its
    address ends in ``.git``, ``URL:PATH``.
    """
    if "://" in text or _SCP_ADDRESS.match(text):
        url, mark, rest = text.partition("#")
        match = None if mark else _PATH_AFTER_SUFFIX.fullmatch(url)
        if match:
            return TemplateAddress(match[1], "", match[2])
        ref, _, path = rest.partition(":")
        return TemplateAddress(url, ref, path)
    if "/" in text or text in (".", "..", "~"):
        return TemplateAddress("", "", text)
    return None


def read_template(address: TemplateAddress, directory: Path, *, cache: Path) -> TeamTemplate:
    """Return the template at ``address``; relative paths start at ``directory``.

    Raises :class:`UsageError` if it is not a template or not an acceptable one,
    :class:`OutsideError` if the repository cannot be read.
    """
    if not address.url:
        try:
            return _read_directory(directory / Path(address.path).expanduser(), address.path)
        except (OSError, RuntimeError) as error:
            # RuntimeError: the home directory of another user is not known.
            raise UsageError(
                f"cannot read the template {escape_unprintable(address.path)}: {error}"
            ) from error
    commit = resolve_commit(address.url, address.ref, cache=cache)
    path = _normalize_path(address.path)
    source = f"{strip_credentials(address.url)}#{commit}{f':{path}' if path else ''}"
    available = list_files(address.url, commit, cache=cache)
    selected = _select_files(available, path, source)
    _check_files(selected, source)
    contents = read_blobs(address.url, selected.values(), cache=cache)
    return _make_template(
        source,
        [
            TemplateFile(name, file.mode, content)
            for (name, file), content in zip(selected.items(), contents, strict=True)
        ],
    )


def write_template(template: TeamTemplate, directory: Path, *, overwrite: str = "") -> None:
    """Write the files of a template into ``directory``, all or none of them.

    Existing files stay: one with the same content is left, another is an error, unless it is the
    regular file named ``overwrite``. Raises :class:`UsageError` listing the files.
    """
    conflicts = []
    missing = []
    replaced = []
    for file in template.files:
        problem = _find_conflict(file, directory)
        if problem is None:
            missing.append(file)
        elif file.path == overwrite and problem == file.path:
            replaced.append(file)
        elif problem:
            conflicts.append(problem)
    if conflicts:
        raise UsageError(
            f"the template would overwrite {_list_names(conflicts)}",
            hint="move them away, or start in an empty directory; nothing was written",
        )
    created: list[Path] = []
    try:
        for file in missing:
            target = directory / file.path
            _make_parents(target.parent, created)
            _create_file(file, target, created)
        for file in replaced:
            write_atomic(directory / file.path, file.content)
    except OSError as error:
        for path in reversed(created):
            with suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        name = error.filename or directory
        raise OutsideError(f"cannot write {name}: {error.strerror}") from error


def _read_directory(path: Path, text: str) -> TeamTemplate:
    if path.is_file() and path.suffix == ".envd":
        root, names = path.parent, [path.name]
    elif path.is_dir():
        root, names = path, sorted(_list_directory(path))
    else:
        hint = "a template of a git repository is an address such as https://host/team/templates"
        raise UsageError(f"template directory {escape_unprintable(text)} not found", hint=hint)
    files = {}
    for name in names[: MAX_FILES + 1]:
        status = os.lstat(root / name)
        mode = _PROGRAM if status.st_mode & 0o100 else _REGULAR
        if not stat.S_ISREG(status.st_mode):
            mode = ""
        files[name] = CommitFile(name, mode, "", status.st_size)
    inside = _list_template_directories(files)
    if inside and not any(name in files for name in BUILD_FILES):
        listed = escape_unprintable(", ".join(inside[:_MAX_LISTED_NAMES]))
        raise UsageError(
            f"{escape_unprintable(text)} is not a template: {BUILD_FILES[0]} not found",
            hint=f"templates there: {listed}; add one to the path",
        )
    _check_files(files, text)
    with ProjectTree(root) as tree:
        found = [
            TemplateFile("build.envd" if root != path else name, file.mode, tree.read_bytes(name))
            for name, file in files.items()
        ]
    return _make_template(text, found)


def _list_directory(root: Path) -> Iterator[str]:
    """Yield the files and links below ``root``, without git's directory and bytecode."""

    def fail(error: OSError) -> None:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error

    for place, directories, names in os.walk(root, onerror=fail):
        links = [name for name in directories if os.path.islink(os.path.join(place, name))]
        directories[:] = [
            name for name in directories if name not in (*links, ".git", "__pycache__")
        ]
        for name in (*names, *links):
            if name != ".git":
                yield os.path.relpath(os.path.join(place, name), root)


def _normalize_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/"):
        raise UsageError(
            f"{escape_unprintable(path)} is not a path in the repository",
            hint="write it relative to the root: https://host/team/templates#main:vision",
        )
    return "/".join(parts)


def _select_files(files: Sequence[CommitFile], path: str, source: str) -> dict[str, CommitFile]:
    """Return the files below ``path`` by their path in the template."""
    prefix = f"{path}/" if path else ""
    selected = {}
    for file in files:
        if file.path == path and path.endswith(".envd"):
            return {"build.envd": file}
        if file.path.startswith(prefix):
            selected[file.path.removeprefix(prefix)] = file
    if not any(name in selected for name in BUILD_FILES):
        directories = _list_template_directories(file.path for file in files)
        known = find_nearest_name(path, directories) if path else ""
        listed = escape_unprintable(known or ", ".join(directories[:_MAX_LISTED_NAMES]))
        raise UsageError(
            f"{escape_unprintable(path) or 'the repository'} is not a template:"
            f" {BUILD_FILES[0]} not found in {source}",
            hint=f"templates there: {listed}; add one to the address, as in URL#:PATH"
            if listed
            else "a template is a directory with a build.envd or build.py",
        )
    return selected


def _list_template_directories(paths: Iterable[str]) -> list[str]:
    places = (path.rpartition("/") for path in paths)
    return sorted({parent for parent, _, name in places if name in BUILD_FILES and parent})


def _check_files(files: dict[str, CommitFile], source: str) -> None:
    """Raise :class:`UsageError` for a file that a template must not have, or too many of them."""
    for name, file in files.items():
        problem = _find_name_problem(name)
        if not problem and file.mode not in (_REGULAR, _PROGRAM):
            problem = "is not a file; links, submodules, pipes and devices are not copied"
        if not problem and file.size > MAX_FILE_BYTES:
            problem = f"is larger than {format_size(MAX_FILE_BYTES)}"
        if problem:
            raise UsageError(
                f"the template {mask_credentials(source)} cannot be used:"
                f" {escape_unprintable(name)} {problem}"
            )
    total = sum(file.size for file in files.values())
    if len(files) > MAX_FILES or total > MAX_TEMPLATE_BYTES:
        raise UsageError(
            f"the template {mask_credentials(source)} is too large",
            hint=f"the limits are {MAX_FILES} files and {format_size(MAX_TEMPLATE_BYTES)}; data and"
            " models are better fetched by io.http() or mounted",
        )


def _find_name_problem(name: str) -> str:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name:
        return "leads out of the template"
    # git runs what the configuration and the hooks of a repository say.
    if any(part.casefold().rstrip(". ") == ".git" for part in parts):
        return "would change a git repository"
    if not name.isprintable() or any(len(os.fsencode(part)) > 255 for part in parts):
        return "is not a valid name"
    return ""


def _make_template(source: str, files: Sequence[TemplateFile]) -> TeamTemplate:
    """Check what depends on the files' content, and return the template."""
    template = TeamTemplate(source, tuple(files))
    found = [file for file in files if file.path in BUILD_FILES]
    if not found:
        raise UsageError(
            f"{escape_unprintable(mask_credentials(source))} is not a template:"
            f" {BUILD_FILES[0]} not found",
            hint="a template is a directory with a build.envd or build.py",
        )
    for file in found:
        try:
            text = file.content.decode("utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise UsageError(f"{file.path} of the template is not a UTF-8 text file")
    return template


def _find_conflict(file: TemplateFile, directory: Path) -> str | None:
    """Return what is in the way of a file; empty if it is there already, None if nothing is."""
    for parent in reversed(PurePosixPath(file.path).parents[:-1]):
        try:
            status = os.lstat(directory / parent)
        except FileNotFoundError:
            return None
        # A link to a directory could lead out of the project.
        if not stat.S_ISDIR(status.st_mode):
            return str(parent)
    target = directory / file.path
    try:
        status = os.lstat(target)
        same = (
            stat.S_ISREG(status.st_mode)
            and status.st_size == len(file.content)
            and target.read_bytes() == file.content
        )
    except FileNotFoundError:
        return None
    except OSError:
        same = False
    return "" if same else file.path


def _list_names(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    hidden = len(unique) - _MAX_LISTED_NAMES
    more = f" and {hidden} more" if hidden > 0 else ""
    return ", ".join(escape_unprintable(name) for name in unique[:_MAX_LISTED_NAMES]) + more


def _make_parents(directory: Path, created: list[Path]) -> None:
    if not directory.exists():
        _make_parents(directory.parent, created)
        directory.mkdir()
        created.append(directory)


def _create_file(file: TemplateFile, target: Path, created: list[Path]) -> None:
    mode = 0o777 if file.mode == _PROGRAM else 0o666
    # O_EXCL also refuses a link that appeared since the check.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    created.append(target)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(file.content)
