"""pip's own configuration, read as pip reads it (pip documentation, "Configuration")."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["configuration_files", "pip_options", "values"]


def configuration_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files pip would read, from the least to the most important."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    for directory in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")):
        if directory:
            yield Path(directory) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    site = environ.get("VIRTUAL_ENV") or sys.prefix
    yield Path(site) / "pip.conf"
    if named:
        yield Path(named)


def _read(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        # pip warns about an unreadable file and goes on; a broken one does not stop a build.
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The options that ``pip install`` would run with: long name with dashes to its raw text.

    Of one option, ``[install]`` wins over ``[global]`` and a ``PIP_*`` variable over both; of one
    section, the more important file wins.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, "env": {}}
    for path in configuration_files(environ):
        for section, options in _read(path).items():
            if section in ("global", "install"):
                sections[section].update(
                    (name.lower().replace("_", "-").removeprefix("--"), text)
                    for name, text in options.items()
                )
    for variable, text in environ.items():
        if variable.startswith("PIP_") and text:
            sections["env"][variable[4:].lower().replace("_", "-")] = text
    return {**sections["global"], **sections["install"], **sections["env"]}


def values(text: str) -> tuple[str, ...]:
    """The values of an option that may be given several times: parted by blanks or line ends."""
    return tuple(text.split())
