"""Find out what a shell script installs, if that is all it does.

A script becomes declarations only if each of its commands is understood completely, and runs for
certain. Otherwise the caller keeps the whole script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from e2b_dockerfile_utils import ShellLex
from packaging.requirements import InvalidRequirement, Requirement

_VARIABLE = r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})"
#: A word without globs, braces, redirections and substitutions. Brackets are those of extras.
_WORD = (
    r"(?![#~])(?:[\w@%+=:,./^#~-]|\[[A-Za-z][\w,-]*\]|'[^']*'"
    rf'|"(?:[^"\\`$]|{_VARIABLE})*"|{_VARIABLE})+'
)
_TOKEN = re.compile(rf"[ \t]*(?:(?P<word>{_WORD})(?=[ \t\n;&]|$)|(?P<end>&&|[;\n]))")
#: Words that bash understands as keywords or builtins, but not every shell.
_BASH_WORDS = re.compile(
    r"(?m)(?:^|&&)\s*(?:time|source|function|select|declare|typeset|local|let|pushd|popd|shopt|help"
    r"|echo|printf|test|read|trap|exec|exit|return|if|for|while|until|case|then|do|else|fi|done"
    r"|esac|coproc|enable|history|wait|eval|unset|export|readonly|set|\.)(?=[\s;]|$)"
)
_LIST_PART = re.compile(r"""(?:[^'"\\&]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|(?<!&)&(?!&))+""")
_ASSIGNMENT = re.compile(r"^\w+\+?=")

_APT_FLAGS = {"-y", "--yes", "--assume-yes", "-q", "-qq", "-yq", "-yqq", "-qy", "-qqy"}
_APT_FLAGS |= {"--quiet", "--no-install-suggests"}
_APT_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*?(?:[a-z0-9]|\+\+)")
_APT_FILES = re.compile(r"(?:/var/lib/apt/lists|/var/cache/apt|/root/\.cache)(?:/[\w.-]+)*/?")
_PIP_FLAGS = {
    *("--no-cache-dir", "--upgrade", "-U", "-q", "--quiet", "-v", "--verbose", "--no-input"),
    *("--disable-pip-version-check", "--break-system-packages", "--root-user-action=ignore"),
    *("--no-warn-script-location", "--no-cache", "--system", "--progress-bar=off", "--no-color"),
}
_PIP_VALUE_FLAGS = {"--timeout", "--default-timeout", "--retries", "--progress-bar"}


@dataclass
class InstalledPackages:
    """What the commands of a script install, in order.

    ``recommends`` says that apt would also install what the packages recommend.
    """

    system: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    recommends: bool = False


def split_commands(
    script: str, find_value: Callable[[str], str | None] = lambda name: None
) -> list[list[str]] | None:
    """Return the words of the commands of a script if all of them run, or else None.

    Commands are joined by ``&&``; after ``set -e``, also by ``;`` and newlines. Words are plain, or
    variables for which ``find_value`` returns a value.
    """
    script = script.strip(" \t\n")
    variables = cast("Mapping[str, str]", _KnownVariables(find_value))
    lexer = ShellLex("\\", env=variables, skip_unset_env=False)
    commands: list[list[str]] = [[]]
    end = 0
    while token := _TOKEN.match(script, end):
        end = token.end()
        if token["word"] is not None:
            try:
                (word,) = lexer.process_words(token["word"])
            except ValueError:  # or a variable that is several words
                return None
            commands[-1].append(word)
        elif commands[-1]:
            is_strict = commands[0][0] == "set" and "e" in commands[0][-1]
            if token["end"] != "&&" and not is_strict:
                return None
            commands.append([])
        elif token["end"] != "\n":
            return None
    if end < len(script) or not commands[-1]:
        return None
    return commands


def split_list(script: str) -> list[str]:
    """Split a script at ``&&``, unless quotes may be nested or newlines matter."""
    parts = _LIST_PART.findall(script)
    if not parts or "&&".join(parts) != script or re.search(r"[#`\n]|<<|\$\(", script):
        return [script]
    return [part.strip() for part in parts]


def is_portable(script: str) -> bool:
    """Return whether bash with ``set -euo pipefail`` and any other shell do the same."""
    commands = split_commands(script)
    return (
        commands is not None
        and not _BASH_WORDS.search(script)
        and not any(_ASSIGNMENT.match(words[0]) for words in commands)
    )


def read_script(
    script: str, find_value: Callable[[str], str | None] = lambda name: None
) -> InstalledPackages | None:
    """Return what a script installs with apt and pip; None unless that is all it does."""
    script = re.sub(r"(?<=[\s/]apt/lists)/\*(?=[ \t\n;]|$)", "", script)
    installed = InstalledPackages()
    commands = split_commands(script, find_value)
    if commands is None or not all(_read_command(words, installed) for words in commands):
        return None
    return installed


class _KnownVariables:
    """Variables for the lexer; one that is unknown, or that the shell would expand, is an error."""

    def __init__(self, find_value: Callable[[str], str | None]) -> None:
        self._find_value = find_value

    def get(self, name: str) -> str:
        value = self._find_value(name)
        if value is None or re.search(r"[*?\[\]\\]", value):
            raise ValueError(name)
        return value


def _read_command(words: list[str], installed: InstalledPackages) -> bool:
    """Add what a command installs; return False if it may do anything else."""
    if words[0] == "sudo" and len(words) > 1:
        words = words[1:]
    if words[0] == "DEBIAN_FRONTEND=noninteractive" and len(words) > 1:
        words = words[1:]
    program, *arguments = words
    if program == "set":
        return all(re.fullmatch(r"-[eux]+", argument) for argument in arguments)
    if program == "rm":
        flags = [argument for argument in arguments if argument.startswith("-")]
        paths = [argument for argument in arguments if not argument.startswith("-")]
        return {*flags} <= {"-r", "-f", "-rf", "-fr"} and all(map(_APT_FILES.fullmatch, paths))
    if program in ("apt", "apt-get"):
        return _read_apt_command(arguments, installed)
    if program in ("python", "python3") and arguments[:1] == ["-m"]:
        program, *arguments = arguments[1:] or [""]
    elif program == "uv" and "--system" in arguments:
        program, *arguments = arguments
    if program not in ("pip", "pip3") or not arguments:
        return False
    if arguments == ["cache", "purge"]:
        return True
    return arguments[0] == "install" and _read_pip_arguments(arguments[1:], installed)


def _read_apt_command(arguments: list[str], installed: InstalledPackages) -> bool:
    others = [argument for argument in arguments if argument not in _APT_FLAGS]
    if others in (["update"], ["clean"], ["autoclean"]):
        return True
    names = [name for name in others if name != "--no-install-recommends"]
    if names[:1] != ["install"] or not all(map(_APT_NAME.fullmatch, names)):
        return False
    installed.recommends = installed.recommends or names == others
    installed.system += names[1:]
    return True


def _read_pip_arguments(arguments: list[str], installed: InstalledPackages) -> bool:
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word in _PIP_FLAGS:
            continue
        if name in _PIP_VALUE_FLAGS:
            value = value if equals else next(words, "")
        elif word == "-r" or name == "--requirement":
            installed.requirements.append(value if equals else next(words, ""))
        elif _is_requirement(word):
            installed.packages.append(word)
        else:
            return False
    return "" not in installed.requirements


def _is_requirement(word: str) -> bool:
    if word.startswith(("git+https://", "https://")):
        return True
    if word.endswith((".whl", ".zip", ".gz")):
        return False  # a file, if it exists
    try:
        Requirement(re.sub("[\U0010f000-\U0010ffff]", "1", word))
    except InvalidRequirement:
        return False
    return True
