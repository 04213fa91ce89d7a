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
from collections.abc import Callable, Iterable
from pathlib import Path

from danlu.errors import MachineError, OutsideError, UsageError
from danlu.util.files import write_atomic
from danlu.util.paths import Paths
from danlu.util.process_activity import run_program
from danlu.util.safe_paths import ProjectTree

#: White space as Go's ``unicode.IsSpace`` has it; Python's also counts U+001C to U+001F.
_GO_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_ESCAPE = r"\\[!-/:-@[-`{-~ ]"
_CLASS_CHARACTER = rf"(?:{_ESCAPE}|[^]\\\[*?-])"
#: The parts of a pattern of .dockerignore that have the same meaning in Go's regular expressions,
#: into which moby translates patterns, and in Python's.
_TOKEN = re.compile(
    rf"(?P<deep>\*\*/?)|(?P<star>\*)|(?P<any>\?)|\[(?P<negation>\^?)(?P<members>"
    rf"(?:{_CLASS_CHARACTER}(?:-{_CLASS_CHARACTER})?)+)\]|(?P<escaped>{_ESCAPE}|\])"
    r"|(?P<plain>[^]\\\[*?]+)"
)
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
        return {
            path
            for path in paths
            if self.excludes(path, is_dir=False)
            or any(self.excludes(parent, is_dir=True) for parent in _list_parents(path))
        }


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
        text = _read_ignore_file(tree, ".gitignore")
    if text is None:
        return RulesWithoutGit("")
    if (tree.project / ".git").exists():
        raise _missing_git_error(".gitignore of a repository")
    return RulesWithoutGit(text)


def _missing_git_error(name: str) -> MachineError:
    return MachineError(
        f"git not found: only git knows what {name} excludes",
        hint="install git (apt-get install git), or list the files to exclude in .danluignore",
    )


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
    escapes and classes that Python's regular expressions and Go's may understand differently.
    """

    def __init__(self, text: str) -> None:
        self._patterns: list[tuple[bool, Callable[[str], object]]] = []
        self._exceptions: list[tuple[str, bool]] = []
        for number, line in enumerate(text.split("\n"), 1):
            # moby cleans a line when it reads the file, and again when it compiles the pattern.
            cleaned = "" if line.startswith("#") else _clean_line(line).strip(_GO_SPACES)
            if not cleaned:
                continue
            cleaned = posixpath.normpath(cleaned)
            is_exception = cleaned.startswith("!")
            pattern = cleaned.removeprefix("!") if is_exception else cleaned
            try:
                self._patterns.append((is_exception, _compile_pattern(pattern)))
            except (ValueError, re.error) as error:
                raise UsageError(
                    f".dockerignore, line {number}: {error}: {line.strip()}",
                    hint="see https://docs.docker.com/build/concepts/context/#syntax",
                ) from error
            if is_exception:
                literal = re.split(r"[*?\[\\]", pattern, maxsplit=1)[0]
                self._exceptions.append((literal, literal != pattern))
        self._directories = {"": (False, [False] * len(self._patterns))}

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Return whether ``path`` is excluded, considering the directories that it is in."""
        return self._match_path(path)[0]

    def may_include_below(self, directory: str) -> bool:
        """Return whether an exception may match something in ``directory``."""
        below = f"{directory}/"
        return any(
            literal.startswith(below) or (has_wildcard and below.startswith(literal))
            for literal, has_wildcard in self._exceptions
        )

    def _match_path(self, path: str) -> tuple[bool, list[bool]]:
        """Return whether ``path`` is excluded, and which patterns match it or one above it."""
        parent = posixpath.dirname(path)
        if parent not in self._directories:
            self._directories[parent] = self._match_path(parent)
        is_excluded = False
        matches = []
        for (is_exception, match), matched_above in zip(
            self._patterns, self._directories[parent][1], strict=True
        ):
            # A pattern that could not change the result counts as not matching, also further below.
            matched = matched_above or (is_exception == is_excluded and bool(match(path)))
            matches.append(matched)
            if matched:
                is_excluded = not is_exception
        return is_excluded, matches

    def filter_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of ``paths`` that are excluded."""
        return {path for path in paths if self._match_path(path)[0]}


def _clean_line(line: str) -> str:
    text = line.strip(_GO_SPACES)
    mark = "!" if text.startswith("!") else ""
    text = text.removeprefix(mark).strip(_GO_SPACES)
    if text:
        text = posixpath.normpath(re.sub("/+", "/", text))
    return mark + (text[1:] if len(text) > 1 and text.startswith("/") else text)


def _compile_pattern(pattern: str) -> Callable[[str], object]:
    """Return a function that returns something true for paths that ``pattern`` matches."""
    if not pattern:
        raise ValueError("illegal exclusion pattern")
    tokens = list(_TOKEN.finditer(pattern))
    if "".join(token[0] for token in tokens) != pattern or re.search(
        "[\0-\x1f\x7f\ufeff]", pattern
    ):
        raise ValueError("syntax error in pattern, or unsupported escape, class or character")
    wildcards = [token for token in tokens if not token["plain"]]
    if not wildcards:
        return pattern.__eq__
    if len(wildcards) == 1 and tokens[0]["deep"]:
        return lambda path: f"/{path}".endswith(pattern[2:])
    if len(wildcards) == 1 and tokens[-1]["deep"]:
        return lambda path: path.startswith(pattern[:-2])
    if any("^" in (token["plain"] or "") for token in tokens):
        raise ValueError("^ outside a class is not supported in a pattern with wildcards")
    return re.compile("".join(map(_translate_part, tokens))).fullmatch


def _translate_part(token: re.Match[str]) -> str:
    if token["deep"]:
        return ".*" if token.end() == len(token.string) else "(?:.*/)?"
    if token["members"]:
        members = re.sub(r"\\(.)|([^-])", lambda m: re.escape(m[1] or m[2]), token["members"])
        return f"[{token['negation']}{members}]"
    return {"*": "[^/]*", "?": "[^/]"}.get(token[0]) or re.escape(token["plain"] or token[0][-1])


# -- .danluignore, and .gitignore without git


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


class RulesWithoutGit(PathspecRules):
    """The ``.gitignore`` of a project outside of repositories; others below it are refused."""

    def enter_directory(self, directory: str, names: Iterable[str]) -> IgnoreRules:
        """Return these rules."""
        if directory and ".gitignore" in names:
            raise _missing_git_error(f"{directory}/.gitignore")
        return self


# -- git


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
        if not self._is_in_repository:
            env |= {"GIT_DIR": str(_make_empty_repository()), "GIT_WORK_TREE": str(place)}
        done = run_program([*_GIT_COMMAND, *args], input=os.fsencode(input), env=env, cwd=place)
        if done.returncode > 1:
            reason = done.stderr.decode(errors="replace").strip()
            if self._is_in_repository and re.search("not a git repo|run in a work tree", reason):
                self._is_in_repository = False
                return self._run_git(*args, input=input)
            raise OutsideError(f"git {args[0]} failed in {place}: {reason}")
        return [path for path in done.stdout.split(b"\0") if path]


def _make_empty_repository() -> Path:
    """Return a repository without commits, because git reads .gitignore for a repository only."""
    directory = Paths.of().cache / "empty-repository"
    try:
        for name in ("objects", "refs"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        if not (directory / "HEAD").exists():
            write_atomic(directory / "HEAD", b"ref: refs/heads/main\n")
    except OSError as error:
        raise OutsideError(f"cannot write {directory}: {error.strerror}") from error
    return directory
