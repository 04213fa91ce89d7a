"""The machine's package indexes as pip and uv inside a sandbox see them.

pip's files and ``PIP_*`` variables (pip documentation, "Configuration") and uv's (uv
documentation, "Configuration files") are read here and written again as the lowest of the files
that each program reads, so that a configuration of the image's own wins. Directories of this
machine among them are mounted read-only at the same place below ``/run/danlu/files``.
"""

from __future__ import annotations

import configparser
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from danlu.sandbox.types import Mount

__all__ = ["Indexes", "environment", "read", "write"]

_FILES = "/run/danlu/files"
_SYSTEM_FILES = ("/etc/pip.conf", "/etc/uv/uv.toml")
_PIP_FILE = "/etc/xdg/pip/pip.conf"
_UV_FILE = "/etc/xdg/uv/uv.toml"

# Options that say where packages come from and how they are reached; the others (caches, user
# installs, log files) are the machine's own business.
_PIP_LISTS = ("extra-index-url", "find-links", "trusted-host")
_PIP_VALUES = ("index-url", "no-index", "timeout", "retries", "prefer-binary", "proxy")
_PIP_NAMES = {"timeout": "default-timeout"}
_UV_KEYS = (
    "index",
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "allow-insecure-host",
    "index-strategy",
    "native-tls",
    "system-certs",
)
_PASSED = (
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "UV_HTTP_TIMEOUT",
    "UV_INDEX_STRATEGY",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
)


@dataclass(frozen=True, slots=True)
class Indexes:
    """pip's options, uv's keys, and the mounts that the paths among them need."""

    pip: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    uv: Mapping[str, object] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of pip and uv that hold no place and are passed on as they are."""
    return {name: environ[name] for name in _PASSED if environ.get(name)}


def read(environ: Mapping[str, str]) -> Indexes:
    """What this machine's pip and uv use, with paths as they are inside."""
    places: dict[str, Path] = {}

    def inside(value: str) -> str:
        return _inside(value, places)

    pip = _translated(_pip(environ), inside)
    uv = _uv(environ, inside)
    mounts = tuple(
        Mount(target, source, readonly=True) for target, source in sorted(places.items())
    )
    return Indexes(pip, _uv_of_pip(pip) | uv, mounts)


def write(indexes: Indexes, work: Path) -> tuple[Mount, ...]:
    """Configuration files below ``work``, and where they are to be mounted."""
    made = []
    if indexes.pip:
        (work / "pip.conf").write_text(_pip_text(indexes.pip))
        made.append(Mount(_PIP_FILE, work / "pip.conf", readonly=True))
    if indexes.uv:
        (work / "uv.toml").write_text(_uv_text(indexes.uv))
        made.append(Mount(_UV_FILE, work / "uv.toml", readonly=True))
    for mount in made:
        assert mount.source is not None
        mount.source.chmod(0o644)
    return tuple(made)


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's files, weakest first."""
    home = Path(environ.get("HOME", "/nonexistent"))
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [
        *(Path(directory) / "pip/pip.conf" for directory in system),
        *(Path(path) for path in _SYSTEM_FILES if path.endswith("pip.conf")),
        home / ".pip/pip.conf",
        config / "pip/pip.conf",
        *([Path(named)] if named else []),
    ]


def _pip(environ: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    values: dict[str, str] = {}
    # [install] is stronger than [global] in any file.
    for section in ("global", "install"):
        for path in _pip_files(environ):
            values |= _section(path, section)
    for name in (*_PIP_LISTS, *_PIP_VALUES):
        for spelling in (name, _PIP_NAMES.get(name, name)):
            value = environ.get("PIP_" + spelling.upper().replace("-", "_"))
            if value:
                values[name] = value
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in values.items():
        if name in _PIP_LISTS:
            found[name] = tuple(value.split())
        elif name in _PIP_VALUES:
            found[name] = value
    return found


def _section(path: Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    if not parser.has_section(section):
        return {}
    back = {spelling: name for name, spelling in _PIP_NAMES.items()}
    return {
        back.get(name.replace("_", "-"), name.replace("_", "-")): value
        for name, value in parser.items(section)
    }


def _translated(
    values: Mapping[str, str | tuple[str, ...]], inside: Callable[[str], str]
) -> dict[str, str | tuple[str, ...]]:
    places = ("index-url", "extra-index-url", "find-links")
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in values.items():
        if name not in places:
            found[name] = value
        elif isinstance(value, str):
            found[name] = inside(value)
        else:
            found[name] = tuple(map(inside, value))
    return found


def _pip_text(values: Mapping[str, str | tuple[str, ...]]) -> str:
    lines = ["[global]"]
    for name, value in values.items():
        words = (value,) if isinstance(value, str) else value
        lines.append(f"{name} = " + "\n    ".join(words))
    return "\n".join(lines) + "\n"


def _uv_text(values: Mapping[str, object]) -> str:
    """TOML, whose strings, booleans and arrays are JSON's; tables go last."""
    tables = values.get("index", ())
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not tables]
    for table in tables if isinstance(tables, list) else ():
        lines += ["", "[[index]]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _uv_files(environ: Mapping[str, str]) -> list[Path]:
    """uv's files, weakest first; the system's is the first that is there."""
    home = Path(environ.get("HOME", "/nonexistent"))
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    candidates = [
        *(Path(item) / "uv/uv.toml" for item in system),
        *(Path(path) for path in _SYSTEM_FILES if path.endswith("uv.toml")),
    ]
    first = [path for path in candidates if path.is_file()][:1]
    named = environ.get("UV_CONFIG_FILE")
    return [Path(named)] if named else [*first, config / "uv/uv.toml"]


def _uv(environ: Mapping[str, str], inside: Callable[[str], str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for path in _uv_files(environ):
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        values |= {key: table[key] for key in _UV_KEYS if key in table}
    values |= _uv_variables(environ)
    return {key: _moved(key, value, inside) for key, value in values.items()}


def _uv_variables(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    extra = environ.get("UV_INDEX") or environ.get("UV_EXTRA_INDEX_URL")
    links = environ.get("UV_FIND_LINKS")
    if default:
        values["index-url"] = _address(default)
    if extra:
        values["extra-index-url"] = [_address(item) for item in extra.split()]
    if links:
        values["find-links"] = links.replace(",", " ").split()
    return values


def _address(item: str) -> str:
    """``name=URL`` without its name."""
    name, equals, rest = item.partition("=")
    return rest if equals and name.replace("-", "").replace("_", "").isalnum() else item


def _moved(key: str, value: object, inside: Callable[[str], str]) -> object:
    if key == "index" and isinstance(value, list):
        return [
            {**item, "url": inside(str(item["url"]))}
            for item in value
            if isinstance(item, dict) and "url" in item
        ]
    if key == "index-url" and isinstance(value, str):
        return inside(value)
    if key in ("extra-index-url", "find-links") and isinstance(value, list):
        return [inside(str(item)) for item in value]
    return value


def _uv_of_pip(values: Mapping[str, str | tuple[str, ...]]) -> dict[str, object]:
    """pip's options in uv's words, for a machine that configures pip only."""
    found: dict[str, object] = {}
    if "index-url" in values:
        found["index-url"] = values["index-url"]
    if str(values.get("no-index", "")).lower() in ("1", "true", "yes", "on"):
        found["no-index"] = True
    for name in ("extra-index-url", "find-links"):
        if values.get(name):
            found[name] = list(values[name])
    if values.get("trusted-host"):
        found["allow-insecure-host"] = list(values["trusted-host"])
    if "extra-index-url" in found:
        # pip takes the best version of any index; uv only does when told to.
        found["index-strategy"] = "unsafe-best-match"
    return found


def _inside(value: str, places: dict[str, Path]) -> str:
    """``value`` as it is to be written inside; a path of this machine is noted in ``places``."""
    split = urlsplit(value)
    if split.scheme not in ("", "file") or split.netloc not in ("", "localhost"):
        return value
    path = Path(os.path.expanduser(unquote(split.path) if split.scheme else value))
    if not path.is_absolute() or not path.exists():
        return value
    # The pages of a "simple" index point to files beside it.
    shown = path.parent if path.name == "simple" and len(path.parts) > 2 else path
    places[f"{_FILES}{shown}"] = Path(os.path.realpath(shown))
    return f"file://{_FILES}{path}" if split.scheme else f"{_FILES}{path}"
