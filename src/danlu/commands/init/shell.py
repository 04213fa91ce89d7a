"""A shell script of a Dockerfile, taken apart into what it installs and what else it does."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

__all__ = ["Installed", "read_script"]

_PIP_FLAGS = {
    "--no-cache-dir", "--upgrade", "-U", "-q", "--quiet", "--user", "--pre", "-y", "--no-input",
    "--disable-pip-version-check", "--break-system-packages", "--root-user-action=ignore",
    "--no-cache", "--system", "--prefer-binary", "--only-binary=:all:",
}  # fmt: skip

_PIP_VALUED = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host"}

_APT_VALUED = {"-o", "-t", "--target-release"}

_CLEANING = re.compile(
    r"^(apt(-get)?\s+(-\S+\s+)*(update|clean|autoclean|autoremove|upgrade|dist-upgrade)\b"
    r"|rm\s+(-\w+\s+)*(/var/lib/apt|/var/cache/apt|/root/\.cache|~/\.cache)"
    r"|pip3?\s+cache\s+purge|set\s+-\w+|true$|(python3?\s+-m\s+)?pip3?\s+install\s+"
    r"(-\S+\s+)*(pip|setuptools|wheel)(\s+(pip|setuptools|wheel))*$)"
)


@dataclass
class Installed:
    """What the scripts of a Dockerfile install, in order."""

    system: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    index: str = ""
    left: list[str] = field(default_factory=list)


def read_script(script: str, installed: Installed) -> list[str]:
    """Take installations out of ``script`` into ``installed``; gives the commands that remain."""
    remaining = []
    for command in _commands(script):
        plain = re.sub(r"^(?:[A-Z_]+=\S+\s+|sudo\s+)+", "", command)
        if _CLEANING.match(plain):
            continue
        if not _apt(plain, installed) and not _pip(plain, installed):
            remaining.append(command)
    return remaining


def _commands(script: str) -> list[str]:
    """The script cut at ``&&``, ``;`` and line ends that are not inside quotes or a block."""
    if re.search(r"(?m)^\s*(if|for|while|case|function)\b|\|\||\{\s|<<|(?<!\d)>\s*\(", script):
        return [script.strip()] if script.strip() else []
    parts, current, quote = [], "", ""
    index = 0
    while index < len(script):
        one = script[index]
        if quote:
            quote = "" if one == quote else quote
        elif one in "\"'":
            quote = one
        elif one == "\\" and index + 1 < len(script):
            current += script[index : index + 2]
            index += 2
            continue
        elif one == "(":
            return [script.strip()]
        elif one in ";\n" or script.startswith("&&", index):
            parts.append(current)
            current = ""
            index += 2 if one == "&" else 1
            continue
        current += one
        index += 1
    return [part.strip() for part in [*parts, current] if part.strip()]


def _apt(command: str, installed: Installed) -> bool:
    match = re.match(r"^apt(?:-get)?\s+((?:-\S+\s+)*)install\s+(.*)$", command, re.DOTALL)
    words = _words(match[2]) if match else None
    if words is None:
        return False
    names, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _APT_VALUED:
            skip = True
        elif not word.startswith("-"):
            names.append(word)
    if any(re.search(r"[$*`|<>]|^[./]", one) for one in names):
        return False
    installed.system += names
    return True


def _pip(command: str, installed: Installed) -> bool:
    match = re.match(
        r"^(?:uv\s+)?(?:\S*python3?\S*\s+-m\s+)?pip3?\s+install\s+(.*)$", command, re.DOTALL
    )
    words = _words(match[1]) if match else None
    if words is None or any(re.match(r"[|&<>`]|\d?>", one) for one in words):
        return False
    found = Installed()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in _PIP_FLAGS:
            continue
        if word in ("-r", "--requirement") or name == "--requirement":
            found.requirements.append(value if equals else next(rest, ""))
        elif name in _PIP_VALUED:
            _option(name, value if equals else next(rest, ""), found)
        elif word.startswith(("-", ".", "/")) or "$" in word:
            return False  # something of pip's own: it stays a command
        else:
            found.packages.append(word)
    installed.packages += found.packages
    installed.requirements += found.requirements
    installed.index = found.index or installed.index
    installed.left += found.left
    return True


def _option(name: str, value: str, found: Installed) -> None:
    if name in ("-i", "--index-url"):
        found.index = value
    elif name in ("--extra-index-url", "-f", "--find-links"):
        long = "--find-links" if name == "-f" else name
        found.packages.append(f"{long} {value}")
    else:
        found.left.append(f"pip {name} {value}")


def _words(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None
