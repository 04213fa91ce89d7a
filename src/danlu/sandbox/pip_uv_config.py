"""Read this machine's configuration of pip and uv as the programs themselves do.

Sources: pip documentation, "Configuration"; uv documentation, "Configuration files". Parsers are
imported only if a file exists, because every start of a command reads this.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from danlu.errors import Span, UsageError

#: How pip and uv spell a flag that is set.
TRUE_VALUES = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE_VALUES = frozenset({"0", "off", "f", "false", "n", "no"})

#: The flags among pip's options that are read; pip refuses to run if a value is not a boolean.
_PIP_FLAGS = frozenset({"disable-pip-version-check", "no-index", "pre", "prefer-binary"})

_ETC = Path("/etc")

#: Files of a project with uv's settings; the first hides the second.
_PROJECT_FILES = ("uv.toml", "pyproject.toml")

#: uv's settings that are addresses: relative to their file in a project.
_ADDRESSES = frozenset({"index-url", "extra-index-url", "find-links", "url"})

#: Options of pip that have two names.
_ALIASES = {"default-timeout": "timeout"}


def read_pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that ``pip install`` would use, by long name with dashes, as raw text.

    For one option ``[install]`` wins over ``[global]``, and a ``PIP_*`` variable over both; for one
    section the more important file wins. Raises :class:`UsageError`, where pip refuses to
    run, with the line of a file that is invalid, or a flag whose value is not a boolean.
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
    levels = (sections["global"], sections["install"], variables)
    for name, (text, place) in (item for options in levels for item in options.items()):
        if name in _PIP_FLAGS and text and text.lower() not in TRUE_VALUES | _FALSE_VALUES:
            raise UsageError(
                f"{text!r} is not a valid value for {name} in pip's configuration ({place})",
                hint="use true or false",
            )
    return {name: value for options in levels for name, value in options.items()}


def split_values(text: str) -> tuple[str, ...]:
    """Split an option that may be given several times, at whitespace."""
    return tuple(text.split())


def read_uv_settings(environ: Mapping[str, str], project: Path | None = None) -> dict[str, Any]:
    """Return the settings that ``uv pip`` would use, from files only, not from its variables.

    With ``project``, the settings of that directory count too. ``[pip]`` wins over the top level;
    lists are joined, the more important first. Raises :class:`UsageError` for a file that cannot be
    parsed; uv itself checks the settings (:func:`~danlu.sources.pypi.restrictions.check_settings`).
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
        yield path, _read_uv_table(path) or {}
    if _discovers_config(environ):
        for directory in (project, *project.parents) if project else ():
            for name in _PROJECT_FILES:
                table = _read_uv_table(directory / name)
                if table is not None:
                    yield directory / name, _make_absolute(table, directory)
                    return


def _iter_uv_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of the system and the user, or the explicitly configured one."""
    named = environ.get("UV_CONFIG_FILE")
    if named:
        if not os.path.isfile(named):
            raise UsageError(f"{named} not found", hint="UV_CONFIG_FILE names it: correct it")
        yield Path(named)
    elif _discovers_config(environ):
        directories = _system_directories(environ)
        system = [directory / "uv/uv.toml" for directory in directories]
        if not _is_true(environ, "UV_NO_SYSTEM_CONFIG"):
            yield from [path for path in (*system, _ETC / "uv/uv.toml") if path.is_file()][:1]
        yield _user_directory(environ) / "uv/uv.toml"


def _make_absolute(value: Any, directory: Path, name: str = "") -> Any:
    """Return settings of a project with the directories in them as absolute paths."""
    if isinstance(value, dict):
        return {key: _make_absolute(item, directory, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_absolute(item, directory, name) for item in value]
    if name not in _ADDRESSES or not isinstance(value, str) or "://" in value:
        return value
    return str(directory / os.path.expanduser(value))


def _discovers_config(environ: Mapping[str, str]) -> bool:
    """Return whether uv searches for configuration files."""
    return not _is_true(environ, "UV_NO_CONFIG") and not environ.get("UV_CONFIG_FILE")


def _is_true(environ: Mapping[str, str], variable: str) -> bool:
    return environ.get(variable, "").lower() in TRUE_VALUES


def _read_uv_table(path: Path) -> dict[str, Any] | None:
    """Return uv's settings in ``path``, or None if it has none and uv would look further."""
    try:
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refuse_file("uv", path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _refuse_file("uv", path, "not UTF-8", _count_lines(error)) from error
    import tomllib  # only if there is a file: container starts read this too

    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refuse_file("uv", path, f"invalid TOML: {error}") from error
    if path.name == "pyproject.toml":
        tool = table.get("tool")
        table = tool.get("uv") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _count_lines(error: UnicodeDecodeError) -> int:
    return error.object[: error.start].count(b"\n") + 1


def _refuse_file(program: str, path: Path, problem: str, line: int = 0) -> UsageError:
    """Return the error about a file of settings, which may contain passwords: without its text."""
    return UsageError(
        f"cannot read {program}'s configuration {path}: {problem}",
        span=Span(str(path), line) if line else None,
        hint=f"correct the file: {program} does not use it either",
    )


def _home_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _user_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home_directory(environ) / ".config")


def _system_directories(environ: Mapping[str, str]) -> Sequence[Path]:
    named = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(directory) for directory in named.split(":") if directory]


def _normalize_option(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _long_name(name: str) -> str:
    name = _normalize_option(name)
    return _ALIASES.get(name, name)


def _merge_settings(stronger: Mapping[str, Any], weaker: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables; values of ``stronger`` win, and its lists come first."""
    merged = {**weaker, **stronger}
    for name in weaker.keys() & stronger.keys():
        if isinstance(weaker[name], list) and isinstance(stronger[name], list):
            merged[name] = [*stronger[name], *weaker[name]]
    return merged


def _parse_ini(path: Path) -> dict[str, dict[str, str]]:
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError:
        return {}  # pip ignores these, too
    except UnicodeDecodeError as error:
        raise _refuse_file("pip", path, "invalid UTF-8 characters", _count_lines(error)) from error
    import configparser  # only if there is a file: container starts read this too

    parser = configparser.RawConfigParser()
    # The names of an option are one: pip refuses a second one in another spelling.
    parser.optionxform = _normalize_option  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        # The first line of the message is without the text of the file.
        line = getattr(error, "lineno", 0) or getattr(error, "errors", [(0,)])[0][0]
        raise _refuse_file("pip", path, str(error).splitlines()[0], line) from None
    return {name: dict(parser.items(name)) for name in parser.sections()}
