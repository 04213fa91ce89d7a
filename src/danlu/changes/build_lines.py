"""Render changes of an environment as calls of build functions.

Packages become calls of ``install.*``. Everything else is one script: files are staged by
``io.copy`` in a directory of their own, because all copies of a ``build.envd`` come before all of
its ``run()`` steps, and what an earlier step removes could be what a later one adds.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from danlu.changes.conda_changes import render_conda_line
from danlu.changes.environment_changes import EnvironmentChanges
from danlu.changes.file_changes import ChangedFile, FileAttributes
from danlu.changes.python_changes import PythonChange
from danlu.changes.xattr_commands import quote_shell, render_xattr_commands

#: One argument of a program has at most 128 KiB (execve(2)), and a script is one.
_MAX_SCRIPT_BYTES = 100_000
_PATHS_PER_COMMAND = 16


def render_build_lines(
    changes: EnvironmentChanges, *, staged: str = "", ignored: Sequence[str] = ()
) -> list[str]:
    """Return calls of build functions that reproduce the changes.

    ``staged`` is the project's directory with copies of the files, in which each has its path;
    without it there are no lines for these. ``ignored`` are paths below it that an ignore file of
    the project excludes.
    """
    lines = [*render_conda_line(changes.conda), *render_python_line(changes.python)]
    if changes.system.installed:
        lines.append(f"install.apt_packages({_render_list(changes.system.installed)})")
    for path in (["", *ignored]) if staged else ():
        place = f"{staged}{path}"
        lines.append(f"io.copy({_quote_text(place)}, {_quote_text(f'/{place}')})")
    lines += [
        f"run({_render_list(['# what was changed by hand', *commands], rows=True)})"
        for commands in _split_script(_render_script(changes, staged))
    ]
    return lines


def list_chosen_packages(packages: Sequence[PythonChange]) -> list[PythonChange]:
    """Return the packages that are no dependencies of others, and that requirements install."""
    return [item for item in packages if item.requirement and (item.requested or not item.implied)]


def render_python_line(
    packages: Sequence[PythonChange], *, only_limits: bool = False
) -> Iterator[str]:
    """Yield the call that installs packages, or that only limits versions of dependencies."""
    chosen = list_chosen_packages(packages)
    # Their versions count only where they are needed: not on another platform, for example.
    others = [item for item in packages if item.requirement and item not in chosen]
    if not chosen:
        return
    limits = [f"{item.name}=={item.version}" for item in others if not item.url]
    arguments = [f"constraints={_render_list(limits)}"] if limits else []
    if not only_limits:
        arguments.insert(0, _render_list([item.requirement for item in chosen]))
    if arguments:
        yield f"install.python_packages({', '.join(arguments)})"


def _render_list(texts: Iterable[str], *, rows: bool = False) -> str:
    items = [_quote_text(text) for text in texts]
    if not rows or len(items) < 2:
        return f"[{', '.join(items)}]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _quote_text(text: str) -> str:
    """Return a string literal that is the same in Starlark and in Python."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(map(_escape_character, escaped)) + '"'


def _escape_character(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _split_script(commands: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for command in commands:
        if part and sum(map(len, (*part, command))) > _MAX_SCRIPT_BYTES:
            yield part
            part = []
        part.append(command)
    if part:
        yield part


# -- the script


def _render_script(changes: EnvironmentChanges, staged: str) -> list[str]:
    """Return commands in an order in which none undoes what another did."""
    copied = [change for change in changes.files if change.has_copy]
    files = [change for change in changes.files if not change.problem]
    if not staged:
        paths = {change.path for change in copied}
        files = [item for item in files if item.path not in paths and item.target not in paths]
    present = [change for change in files if change.kind != "removed"]
    commands = list(changes.accounts.commands)
    if changes.system.removed:
        commands.insert(0, f"dpkg --remove {' '.join(changes.system.removed)}")
    for name, selection in changes.system.selections:
        commands.append(f"echo '{name} {selection}' | dpkg --set-selections")
    removed = [item.path for item in files if item.kind == "removed"]
    replaced = [item for item in present if item.replaces]
    removed += [item.path for item in replaced if item.type != "directory"]
    commands += _render_paths("rm -rf --", removed)
    for change in replaced:
        if change.type == "directory":
            # A package may have made it.
            path = quote_shell(change.path)
            commands.append(f"test -d {path} -a ! -L {path} || rm -f -- {path}")
    new = [item.path for item in present if item.is_new_directory]
    commands += _render_paths("mkdir -p --", new)
    if staged and copied:
        place = shlex.quote(f"/{staged}")
        commands.insert(
            0,
            f'test "$(find {place} -type f -print0 | tr -cd "\\0" | wc -c)" = {len(copied)}'
            " # fails if an ignore file of the project excludes some",
        )
        commands.append(f"cp -RT --remove-destination {place} /")
        commands.append(f"rm -r {place}")
        commands.append(
            f"rmdir --ignore-fail-on-non-empty {shlex.quote('/' + staged.split('/')[0])}"
        )
    for change in present:
        if change.type == "pipe":
            path = quote_shell(change.path)
            commands.append(f"test -p {path} || mkfifo -- {path}")
        elif change.type == "link":
            words = quote_shell(change.target), quote_shell(change.path)
            commands.append(f"ln -sfn -- {' '.join(words)}")
    commands += _render_attributes(present)
    for change in present:
        if change.type == "hardlink":
            words = quote_shell(change.target), quote_shell(change.path)
            commands.append(f"ln -f -- {' '.join(words)}")
    for change in present:
        commands += render_xattr_commands(change.path, change.xattrs, change.lost_xattrs)
    return commands


def _render_attributes(changes: Sequence[ChangedFile]) -> Iterator[str]:
    """Yield commands that set owners, and then modes: chown(2) clears the set-id bits."""
    changes = [change for change in changes if change.type != "hardlink"]
    owners = [change for change in changes if _owner_of(change.before) != change.attributes[1:]]
    yield from _group_paths(owners, lambda item: "chown -h {1}:{2} --".format(*item.attributes))
    modes = [
        change
        for change in changes
        if change.type != "link"
        and (
            change.before is None
            or change.before.mode != change.attributes.mode
            or (change in owners and change.attributes.mode & (stat.S_ISUID | stat.S_ISGID))
        )
    ]
    # An octal mode with leading zeros clears the set-id bits of directories (chmod(1)).
    yield from _group_paths(modes, lambda item: f"chmod {item.attributes.mode:05o} --")


def _owner_of(attributes: FileAttributes | None) -> tuple[int, ...] | None:
    return None if attributes is None else attributes[1:]


def _group_paths(
    changes: Iterable[ChangedFile], render: Callable[[ChangedFile], str]
) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for change in changes:
        groups.setdefault(render(change), []).append(change.path)
    for command, paths in sorted(groups.items()):
        yield from _render_paths(command, paths)


def _render_paths(command: str, paths: Sequence[str]) -> Iterator[str]:
    ordered = sorted(paths)
    for start in range(0, len(ordered), _PATHS_PER_COMMAND):
        words = map(quote_shell, ordered[start : start + _PATHS_PER_COMMAND])
        yield " ".join((command, *words))
