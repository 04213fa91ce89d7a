"""Which files of a project its ignore file excludes, as the tool whose file it is says.

``.dockerignore`` is read as BuildKit reads it. For ``.gitignore``, git itself answers: those in
sub-directories, ``.git/info/exclude`` and tracked files count. ``.danluignore`` has the syntax of
one ``.gitignore`` at the project's top. The reasons are in docs/architecture/decisions.md, "Foreign
formats mean what their own tool says".
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from danlu.errors import MachineError, OutsideError, UsageError
from danlu.util.paths import Paths
from danlu.util.process_activity import run_program
from danlu.util.safe_paths import ProjectTree

#: What Python and Go, into whose regular expressions patterns are translated, may understand
#: differently: escapes of letters, classes of more than plain characters, ``^`` and odd blanks.
_CLASS = re.compile(r"\[\^?(?:[^]\\\[*?&|~^-](?:-[^]\\\[*?&|~^-])?)+\]")
_UNSUPPORTED = re.compile(r"\\[^!-/:-@[-`{-~ ]|\[|\^.*[*?\\]|[*?\\].*\^|^!\s|^!?/.")
_ODD_BLANKS = re.compile("[\0-\x1f\x7f\ufeff]")
#: What the configuration of a repository must not make git do: run programs, or fetch objects.
_GIT_COMMAND = ("git", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")
_GIT_VARIABLES = {"GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


class IgnoreRules:
    """What an ignore file excludes: nothing, unless a subclass says so.

    Paths are relative to the project, without a final slash.
    """

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Return whether ``path``, in a directory that is not excluded, is excluded."""
        return False

    def may_include_below(self, directory: str) -> bool:
        """Return whether something in an excluded directory may belong to the project."""
        return False

    def enter_directory(self, directory: str, names: Iterable[str]) -> IgnoreRules:
        """Return the rules for what is in ``directory``, which contains ``names``."""
        return self

    def filter_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of ``paths``, files that need not exist, that are excluded."""
        return {path for path in paths if self.excludes(path, is_dir=False)}


def load_ignore_rules(tree: ProjectTree) -> IgnoreRules:
    """Return the rules of ``.danluignore``, or else ``.dockerignore``, or else git.

    Raises :class:`UsageError` for a file whose meaning is not certain, and :class:`MachineError` if
    only git knows it and is not installed.
    """
    for name, rules in ((".danluignore", PathspecRules), (".dockerignore", DockerignoreRules)):
        text = _read_ignore_file(tree, name)
        if text is not None:
            return rules(text)
    try:
        return GitRules(tree.project)
    except FileNotFoundError:  # git is not installed
        return RulesWithoutGit().enter_directory("", os.listdir(tree.project))


def _read_ignore_file(tree: ProjectTree, name: str) -> str | None:
    try:
        return tree.read_bytes(name).decode().removeprefix("\ufeff")
    except (FileNotFoundError, IsADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not valid UTF-8: {error.reason}") from error


def _list_parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


# -- .dockerignore


class DockerignoreRules(IgnoreRules):
    """A ``.dockerignore``, whose lines are matched as moby's ``patternmatcher`` matches them.

    The last line that matches a path or a directory it is in decides, so that ``!`` has an effect
    within excluded directories. Raises :class:`UsageError` for lines that moby refuses, and for
    those that the port of its matcher may understand differently.
    """

    def __init__(self, text: str) -> None:
        from e2b_dockerfile_utils import PatternMatcher  # slow to load

        patterns = []
        for number, line in enumerate(text.split("\n"), 1):
            pattern = "" if line.startswith("#") else _clean_line(line)
            patterns.append(f"./{pattern}" if pattern.startswith("#") else pattern)
            try:
                odd = _ODD_BLANKS.search(line.strip("\t\v\f\r "))
                if odd or _UNSUPPORTED.search(_CLASS.sub("?", pattern)):
                    raise ValueError(f"unsupported escape, class or character in {pattern!r}")
                PatternMatcher(patterns[-1:])
            except ValueError as error:
                raise UsageError(
                    f".dockerignore, line {number}: {error}",
                    hint="see https://docs.docker.com/build/concepts/context/#syntax",
                ) from error
        self._matcher = PatternMatcher(patterns)

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Return whether ``path`` is excluded, considering the directories that it is in."""
        return self._matcher.matches(path)

    def may_include_below(self, directory: str) -> bool:
        """Return whether an exception may match something in ``directory``."""
        return self._matcher.may_match_under(directory)


def _clean_line(line: str) -> str:
    """Clean a line as moby does when it reads the file, and again when it compiles the pattern."""
    text = line.strip()
    mark = "!" if text.startswith("!") else ""
    text = text.removeprefix(mark).strip()
    if text:
        text = posixpath.normpath(re.sub("/+", "/", text))
    text = mark + (text[1:] if len(text) > 1 and text.startswith("/") else text)
    return text and posixpath.normpath(text.strip())


# -- .danluignore


class PathspecRules(IgnoreRules):
    """One file in the syntax of ``.gitignore``."""

    def __init__(self, text: str) -> None:
        import pathspec  # slow to load, and most projects have no such file

        if "[:" in text:
            raise UsageError("an ignore file uses a class such as [[:digit:]]", hint="write [0-9]")
        self._spec = pathspec.GitIgnoreSpec.from_lines(text.split("\n"))

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Return whether ``path`` is excluded."""
        return self._spec.match_file(f"{path}/" if is_dir else path)

    def filter_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of ``paths`` that are excluded, or are in a directory that is."""
        return {
            path
            for path in paths
            if self.excludes(path, is_dir=False)
            or any(self.excludes(parent, is_dir=True) for parent in _list_parents(path))
        }


# -- git


class RulesWithoutGit(IgnoreRules):
    """Nothing is excluded, and what only git knows is refused."""

    def enter_directory(self, directory: str, names: Iterable[str]) -> IgnoreRules:
        """Return these rules."""
        if not {".git", ".gitignore"}.isdisjoint(names):
            name = posixpath.join(directory, ".gitignore")
            raise MachineError(
                f"git not found: only git knows what {name} excludes",
                hint="install git (apt-get install git), or list the files in .danluignore",
            )
        return self


class GitRules(IgnoreRules):
    """What git excludes below ``prefix`` of a project, whether or not it is in a repository.

    Raises :class:`FileNotFoundError` if git is not installed.
    """

    def __init__(self, project: Path, prefix: str = "") -> None:
        self._project = project
        self._prefix = prefix
        self._is_in_repository = True
        listing = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
        output = self._run_git(*listing)
        if b"./" in output:  # the repository of a directory above, which ignores this one
            self._is_in_repository = False
            output = self._run_git(*listing)
        self._excluded = {f"{prefix}{path.rstrip('/')}" for path in map(os.fsdecode, output)}

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Return whether ``path`` is excluded."""
        return path in self._excluded

    def enter_directory(self, directory: str, names: Iterable[str]) -> IgnoreRules:
        """Return the rules of a submodule or another repository within the project."""
        if f"{directory}/" == self._prefix or not directory or ".git" not in names:
            return self
        return GitRules(self._project, f"{directory}/")

    def filter_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of ``paths``, files that need not exist, that are excluded."""
        paths_at: dict[str, list[str]] = {}
        for path in paths:
            paths_at.setdefault(self._find_boundary(path), []).append(path)
        if not paths_at:
            return set()
        names = [boundary.removeprefix(self._prefix) for boundary in paths_at]
        output = self._run_git("check-ignore", "-z", "--stdin", input="\0".join(names))
        ignored = {self._prefix + os.fsdecode(name) for name in output}
        excluded = set[str]()
        for boundary, below in paths_at.items():
            if boundary in ignored:
                excluded.update(below)
            elif boundary not in below and (self._project / boundary / ".git").exists():
                excluded |= GitRules(self._project, f"{boundary}/").filter_paths(below)
        return excluded

    def _find_boundary(self, path: str) -> str:
        """Return the first link or repository that ``path`` is in, beyond which git looks at
        nothing, or else ``path``.
        """
        for parent in _list_parents(path):
            place = self._project / parent
            if parent.startswith(self._prefix) and (
                place.is_symlink() or (place / ".git").exists()
            ):
                return parent
        return path

    def _run_git(self, *args: str, input: str = "") -> list[bytes]:
        """Run git in the directory, and return the paths that it lists."""
        kept = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES")
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(kept)
        }
        env.update(_GIT_VARIABLES)
        place = self._project / self._prefix
        if not self._is_in_repository:  # git reads .gitignore for a repository only
            empty = str(Paths.of().cache / "empty-repository")
            if not os.path.exists(f"{empty}/HEAD"):
                run_program(["git", "init", "-q", "--bare", "--template=", empty], env=env)
            env |= {"GIT_DIR": empty, "GIT_WORK_TREE": str(place)}
        done = run_program([*_GIT_COMMAND, *args], input=os.fsencode(input), env=env, cwd=place)
        if done.returncode > 1:
            reason = done.stderr.decode(errors="replace").strip()
            if self._is_in_repository and re.search("not a git repo|run in a work tree", reason):
                self._is_in_repository = False
                return self._run_git(*args, input=input)
            raise OutsideError(f"git {args[0]} failed in {place}: {reason}")
        return [path for path in done.stdout.split(b"\0") if path]
