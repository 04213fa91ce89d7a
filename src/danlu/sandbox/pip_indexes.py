"""Give pip and uv inside a sandbox the package indexes that this machine is configured with.

The configuration is written as the least important file that each program reads, so that the
image's own configuration wins. Local directories in it are mounted read-only at the same path below
``/run/danlu/files``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import msgspec

from danlu.sandbox.machine_settings import iter_settings
from danlu.sandbox.pip_uv_config import (
    TRUE_VALUES,
    read_pip_options,
    read_uv_settings,
    split_values,
)
from danlu.sandbox.types import Mount
from danlu.util.toml_text import format_value

_FILES_DIRECTORY = "/run/danlu/files"
_PIP_FILE = "/etc/xdg/pip/pip.conf"
_UV_FILE = "/etc/xdg/uv/uv.toml"

_STEP_SETTINGS = tuple(iter_settings(sandbox="steps"))
_PIP_OPTIONS = frozenset(name for setting in _STEP_SETTINGS for name in setting.pip)
_UV_SETTINGS = tuple(name for setting in _STEP_SETTINGS for name in setting.uv)
_PIP_LISTS = ("extra-index-url", "find-links", "trusted-host")


class MachineIndexes(msgspec.Struct, frozen=True):
    """pip's options, uv's settings, and the mounts that the paths in them need."""

    pip: Mapping[str, str | tuple[str, ...]] = {}
    uv: Mapping[str, object] = {}
    mounts: tuple[Mount, ...] = ()


def passed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of pip and uv that contain no paths and are passed through unchanged."""
    settings = (setting for setting in _STEP_SETTINGS if not setting.separator)
    names = [name for setting in settings for name in setting.variables]
    own = [name for name in names if name.startswith(("PIP_", "UV_"))]
    return {name: environ[name] for name in own if environ.get(name)}


def read_indexes(environ: Mapping[str, str]) -> MachineIndexes:
    """Return the settings of this machine's pip and uv, with paths as they are inside."""
    places: dict[str, Path] = {}

    def moved(value: str) -> str:
        return map_into_sandbox(value, places, below=_FILES_DIRECTORY)

    pip = _map_pip_paths(_read_pip_options(environ), moved)
    uv = _read_uv_settings(environ, moved)
    mounts = tuple(
        Mount(target, source, readonly=True) for target, source in sorted(places.items())
    )
    return MachineIndexes(pip, _convert_pip_to_uv(pip) | uv, mounts)


def write_config_files(indexes: MachineIndexes, work: Path) -> tuple[Mount, ...]:
    """Write configuration files below ``work`` and return their mounts."""
    config_mounts = []
    if indexes.pip:
        (work / "pip.conf").write_text(_render_pip_conf(indexes.pip))
        config_mounts.append(Mount(_PIP_FILE, work / "pip.conf", readonly=True))
    if indexes.uv:
        (work / "uv.toml").write_text(render_uv_toml(indexes.uv))
        config_mounts.append(Mount(_UV_FILE, work / "uv.toml", readonly=True))
    for mount in config_mounts:
        assert mount.source is not None
        # Every user of the container must be able to read it, whatever our umask is.
        mount.source.chmod(0o644)
    return tuple(config_mounts)


def _read_pip_options(environ: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    options: dict[str, str | tuple[str, ...]] = {}
    for name, text in read_pip_options(environ).items():
        if name in _PIP_LISTS:
            options[name] = split_values(text)
        elif name in _PIP_OPTIONS:
            options[name] = text
    return options


def _map_pip_paths(
    values: Mapping[str, str | tuple[str, ...]], moved: Callable[[str], str]
) -> dict[str, str | tuple[str, ...]]:
    places = ("index-url", "extra-index-url", "find-links")
    mapped: dict[str, str | tuple[str, ...]] = {}
    for name, value in values.items():
        if name not in places:
            mapped[name] = value
        elif isinstance(value, str):
            mapped[name] = moved(value)
        else:
            mapped[name] = tuple(map(moved, value))
    return mapped


def _render_pip_conf(values: Mapping[str, str | tuple[str, ...]]) -> str:
    lines = ["[global]"]
    for name, value in values.items():
        several = (value,) if isinstance(value, str) else value
        lines.append(f"{name} = " + "\n    ".join(several))
    return "\n".join(lines) + "\n"


def render_uv_toml(values: Mapping[str, object]) -> str:
    """Return the settings as the text of a ``uv.toml``."""
    return "".join(f"{key} = {format_value(value)}\n" for key, value in values.items())


def _read_uv_settings(environ: Mapping[str, str], moved: Callable[[str], str]) -> dict[str, object]:
    settings = read_uv_settings(environ)
    selected = {key: settings[key] for key in _UV_SETTINGS if key in settings}
    selected |= _read_uv_variables(environ)
    return map_uv_paths(selected, moved)


def _read_uv_variables(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    extra = environ.get("UV_INDEX") or environ.get("UV_EXTRA_INDEX_URL")
    links = environ.get("UV_FIND_LINKS")
    if default:
        values["index-url"] = _strip_index_name(default)
    if extra:
        values["extra-index-url"] = [_strip_index_name(item) for item in extra.split()]
    if links:
        values["find-links"] = links.replace(",", " ").split()
    return values


def _strip_index_name(item: str) -> str:
    """Return ``name=URL`` without the name."""
    name, equals, rest = item.partition("=")
    return rest if equals and name.replace("-", "").replace("_", "").isalnum() else item


def map_uv_paths(settings: Mapping[str, object], moved: Callable[[str], str]) -> dict[str, object]:
    """Return uv's settings with the addresses in them as ``moved`` returns them."""
    return {key: _map_uv_value(key, value, moved) for key, value in settings.items()}


def _map_uv_value(key: str, value: object, moved: Callable[[str], str]) -> object:
    if key == "index" and isinstance(value, list):
        return [
            {**item, "url": moved(str(item["url"]))}
            for item in value
            if isinstance(item, dict) and "url" in item
        ]
    if key == "index-url" and isinstance(value, str):
        return moved(value)
    if key in ("extra-index-url", "find-links") and isinstance(value, list):
        return [moved(str(item)) for item in value]
    return value


def _convert_pip_to_uv(values: Mapping[str, str | tuple[str, ...]]) -> dict[str, object]:
    """Convert pip's options to uv's settings, for a machine that only configures pip."""
    settings: dict[str, object] = {}
    if "index-url" in values:
        settings["index-url"] = values["index-url"]
    if str(values.get("no-index", "")).lower() in TRUE_VALUES:
        settings["no-index"] = True
    for name in ("extra-index-url", "find-links"):
        if values.get(name):
            settings[name] = list(values[name])
    if values.get("trusted-host"):
        settings["allow-insecure-host"] = list(values["trusted-host"])
    if "extra-index-url" in settings:
        # pip takes the best version of any index; uv does so only with this strategy.
        settings["index-strategy"] = "unsafe-best-match"
    return settings


def map_into_sandbox(value: str, places: dict[str, Path], *, below: str) -> str:
    """Return ``value``, a URL or a path, as seen inside, where local paths are under ``below``.

    Anything that is not on this machine is returned unchanged. ``places`` receives the directory or
    file to mount, by its path inside.
    """
    split = urlsplit(value)
    if split.scheme not in ("", "file") or split.netloc not in ("", "localhost"):
        return value
    path = Path(os.path.expanduser(unquote(split.path) if split.scheme else value))
    if not path.is_absolute() or not path.exists() or path == Path("/"):
        return value
    # An HTML page and the pages of a "simple" index link to files next to them.
    has_siblings = path.name == "simple" or path.is_file()
    shown = path.parent if has_siblings and len(path.parts) > 2 else path
    places[f"{below}{shown}"] = Path(os.path.realpath(shown))
    return f"file://{quote(below + str(path))}" if split.scheme else f"{below}{path}"
