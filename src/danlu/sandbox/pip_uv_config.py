"""Read this machine's configuration of pip and uv as the programs themselves do.

Sources: pip documentation, "Configuration"; uv documentation, "Configuration files". Parsers are
imported only if a file exists, because every start of a command reads this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: How pip and uv spell a flag that is set.
TRUE_VALUES = frozenset({"1", "on", "t", "true", "y", "yes"})

_ETC = Path("/etc")

#: Files of a project with uv's settings; the first hides the second.
_PROJECT_FILES = ("uv.toml", "pyproject.toml")

#: Options of pip that have two names.
_ALIASES = {"default-timeout": "timeout"}


def read_pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that ``pip install`` would use, by long name with dashes, as raw text.

    For one option ``[install]`` wins over ``[global]``, and a ``PIP_*`` variable over both; for one
    section the more important file wins. Unreadable or invalid files count as empty.
    """
    return {name: text for name, (text, _) in locate_pip_options(environ).items()}


def locate_pip_options(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return :func:`read_pip_options`, each with its variable or the path of its file."""
    sections: dict[str, dict[str, tuple[str, str]]] = {"global": {}, "install": {}}
    for path in _iter_pip_files(environ):
        for section, options in _parse_ini(path).items():
            if section in sections:
                found = {_long_name(name): (text, str(path)) for name, text in options.items()}
                sections[section] |= found
    variables = {
        _long_name(name.removeprefix("PIP_")): (text, name)
        for name, text in environ.items()
        if name.startswith("PIP_") and text
    }
    return {**sections["global"], **sections["install"], **variables}


def split_values(text: str) -> tuple[str, ...]:
    """Split an option that may be given several times, at whitespace."""
    return tuple(text.split())


def read_uv_settings(environ: Mapping[str, str], project: Path | None = None) -> dict[str, Any]:
    """Return the settings that ``uv pip`` would use, from files only, not from its variables.

    With ``project``, the settings of that directory count too. ``[pip]`` wins over the top level;
    lists are joined, the more important first. Invalid files count as empty.
    """
    merged: dict[str, Any] = {}
    of_pip: dict[str, Any] = {}
    for _, table in iter_uv_tables(environ, project):
        pip = table.pop("pip", {})
        merged = _merge_settings(table, merged)
        of_pip = _merge_settings(pip if isinstance(pip, dict) else {}, of_pip)
    return _merge_settings(of_pip, merged)


def _iter_pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that pip would read, from least to most important."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = _home_directory(environ)
    for directory in _system_directories(environ):
        yield directory / "pip/pip.conf"
    yield _ETC / "pip.conf"
    if not (named and os.path.exists(named)):
        yield home / ".pip/pip.conf"
        yield _user_directory(environ) / "pip/pip.conf"
    yield Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def iter_uv_tables(
    environ: Mapping[str, str], project: Path | None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the files that uv would read and their settings, from least to most important.

    Addresses in them are not relative to their files any more.
    """
    for path in _iter_uv_files(environ):
        yield path, _parse_toml(path)
    if _discovers_config(environ):
        for directory in (project, *project.parents) if project else ():
            for name in _PROJECT_FILES:
                table = _read_uv_table(directory / name)
                if table is not None:
                    yield directory / name, _make_addresses_absolute(table, directory)
                    return


def _iter_uv_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of the system and the user, or the explicitly configured one."""
    named = environ.get("UV_CONFIG_FILE")
    if named:
        yield Path(named)
    elif _discovers_config(environ):
        directories = _system_directories(environ)
        system = [directory / "uv/uv.toml" for directory in directories]
        if not _is_true(environ, "UV_NO_SYSTEM_CONFIG"):
            yield from [path for path in (*system, _ETC / "uv/uv.toml") if path.is_file()][:1]
        yield _user_directory(environ) / "uv/uv.toml"


def _make_addresses_absolute(table: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return settings of a project with the directories in them as absolute paths."""

    def locate(value: object) -> object:
        if not isinstance(value, str) or "://" in value:
            return value
        return str(directory / os.path.expanduser(value))

    settings = dict(table)
    for name, value in table.items():
        if name == "index-url":
            settings[name] = locate(value)
        elif name in ("extra-index-url", "find-links") and isinstance(value, list):
            settings[name] = [locate(item) for item in value]
        elif name == "index" and isinstance(value, list):
            settings[name] = [
                {**item, "url": locate(item.get("url"))} if isinstance(item, dict) else item
                for item in value
            ]
        elif name == "pip" and isinstance(value, dict):
            settings[name] = _make_addresses_absolute(value, directory)
    return settings


def _discovers_config(environ: Mapping[str, str]) -> bool:
    """Return whether uv searches for configuration files."""
    return not _is_true(environ, "UV_NO_CONFIG") and not environ.get("UV_CONFIG_FILE")


def _is_true(environ: Mapping[str, str], variable: str) -> bool:
    return environ.get(variable, "").lower() in TRUE_VALUES


def _read_uv_table(path: Path) -> dict[str, Any] | None:
    """Return uv's settings in ``path``, or None if it has none and uv would look further."""
    if path.name != "pyproject.toml":
        return _parse_toml(path) if path.is_file() else None
    table = _parse_toml(path).get("tool", {})
    table = table.get("uv") if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _home_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _user_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home_directory(environ) / ".config")


def _system_directories(environ: Mapping[str, str]) -> Sequence[Path]:
    named = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(directory) for directory in named.split(":") if directory]


def _long_name(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(name, name)


def _merge_settings(stronger: Mapping[str, Any], weaker: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables; values of ``stronger`` win, and its lists come first."""
    merged = {**weaker, **stronger}
    for name in weaker.keys() & stronger.keys():
        if isinstance(weaker[name], list) and isinstance(stronger[name], list):
            merged[name] = [*stronger[name], *weaker[name]]
    return merged


def _parse_ini(path: Path) -> dict[str, dict[str, str]]:
    text = _read_text(path)
    if not text:
        return {}
    import configparser  # only if there is a file: container starts read this too

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _parse_toml(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    if not text:
        return {}
    import tomllib  # only if there is a file: container starts read this too

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
