"""The machine's configuration of pip and of uv, read as each reads its own.

Sources: pip documentation, "Configuration"; uv documentation, "Configuration files". What is not
there costs no import: every start of a command reads this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["TRUE", "pip_options", "uv_builds", "uv_settings", "words"]

#: How both spell a flag that is set.
TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})

_ETC = Path("/etc")

#: Files of a project that hold settings of uv; the first hides the second.
_PROJECT = ("uv.toml", "pyproject.toml")

#: Settings whose packages uv builds even where its command line forbids to build any.
_BUILDING = ("no-binary", "no-binary-package")

#: Options of pip that have a second name.
_ALIASES = {"default-timeout": "timeout"}


def pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The options that ``pip install`` would run with: long name with dashes to its raw text.

    Of one option, ``[install]`` wins over ``[global]`` and a ``PIP_*`` variable over both; of one
    section, the more important file wins. Files that cannot be read or parsed count as empty.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _pip_files(environ):
        for section, options in _ini(path).items():
            if section in sections:
                sections[section] |= {_long_name(name): text for name, text in options.items()}
    variables = {
        _long_name(name.removeprefix("PIP_")): text
        for name, text in environ.items()
        if name.startswith("PIP_") and text
    }
    return {**sections["global"], **sections["install"], **variables}


def words(text: str) -> tuple[str, ...]:
    """The values of an option that may be given several times: parted by blanks or line ends."""
    return tuple(text.split())


def uv_settings(environ: Mapping[str, str], project: Path | None = None) -> dict[str, Any]:
    """The settings that ``uv pip`` would run with, by uv's files alone and not its variables.

    With ``project`` those that apply in that directory count too. ``[pip]`` wins over what stands
    outside of it, lists are joined, the strongest first. Broken files count as empty.
    """
    merged: dict[str, Any] = {}
    of_pip: dict[str, Any] = {}
    for table in _uv_tables(environ, project):
        pip = table.pop("pip", {})
        merged = _over(table, merged)
        of_pip = _over(pip if isinstance(pip, dict) else {}, of_pip)
    return _over(of_pip, merged)


def uv_builds(environ: Mapping[str, str], project: Path) -> tuple[Path, str] | None:
    """A file that uv may read in ``project`` and the setting in it that makes uv build packages.

    ``project`` has no links in its path. All files above it count: which of them uv reads depends
    on its workspaces.
    """
    above = (project, *project.parents) if _discovers(environ) else ()
    for path in (*_uv_files(environ), *(up / name for up in above for name in _PROJECT)):
        table = _uv_table(path) or {}
        for part in (table, table.get("pip", {})):
            for name in _BUILDING:
                if isinstance(part, dict) and part.get(name):
                    return path, name
    return None


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files pip would read, from the least to the most important."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = _home(environ)
    for directory in _system_directories(environ):
        yield directory / "pip/pip.conf"
    yield _ETC / "pip.conf"
    if not (named and os.path.exists(named)):
        yield home / ".pip/pip.conf"
        yield _user_directory(environ) / "pip/pip.conf"
    yield Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _uv_tables(environ: Mapping[str, str], project: Path | None) -> Iterator[dict[str, Any]]:
    """The contents of the files uv would read, from the least to the most important."""
    for path in _uv_files(environ):
        yield _toml(path)
    if _discovers(environ):
        for directory in (project, *project.parents) if project else ():
            for name in _PROJECT:
                table = _uv_table(directory / name)
                if table is not None:
                    yield table
                    return


def _uv_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files of the system and the user, or the one that is named instead of all."""
    named = environ.get("UV_CONFIG_FILE")
    if named:
        yield Path(named)
    elif _discovers(environ):
        system = [directory / "uv/uv.toml" for directory in _system_directories(environ)]
        yield from [path for path in (*system, _ETC / "uv/uv.toml") if path.is_file()][:1]
        yield _user_directory(environ) / "uv/uv.toml"


def _discovers(environ: Mapping[str, str]) -> bool:
    """Whether uv looks for files by itself."""
    forbidden = environ.get("UV_NO_CONFIG", "").lower() in TRUE
    return not forbidden and not environ.get("UV_CONFIG_FILE")


def _uv_table(path: Path) -> dict[str, Any] | None:
    """uv's settings in ``path``; None where it has none, and uv looks further."""
    if path.name != "pyproject.toml":
        return _toml(path) if path.is_file() else None
    table = _toml(path).get("tool", {})
    table = table.get("uv") if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _user_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config")


def _system_directories(environ: Mapping[str, str]) -> Sequence[Path]:
    named = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(directory) for directory in named.split(":") if directory]


def _long_name(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(name, name)


def _over(stronger: Mapping[str, Any], weaker: Mapping[str, Any]) -> dict[str, Any]:
    """Both as one; a list of the weaker comes behind the stronger's."""
    merged = {**weaker, **stronger}
    for name in weaker.keys() & stronger.keys():
        if isinstance(weaker[name], list) and isinstance(stronger[name], list):
            merged[name] = [*stronger[name], *weaker[name]]
    return merged


def _ini(path: Path) -> dict[str, dict[str, str]]:
    text = _text(path)
    if not text:
        return {}
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _toml(path: Path) -> dict[str, Any]:
    text = _text(path)
    if not text:
        return {}
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
