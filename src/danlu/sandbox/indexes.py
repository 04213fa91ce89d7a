"""The machine's package indexes as pip and uv inside a sandbox see them.

What the machine configures is written again as the weakest of the files that each program reads,
so that a configuration of the image's own wins. Directories of this machine among it are mounted
read-only at the same place below ``/run/danlu/files``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import msgspec

from danlu.sandbox.installerconfig import TRUE, pip_options, uv_settings, words
from danlu.sandbox.types import Mount

__all__ = ["Indexes", "environment", "inside", "read", "write"]

_FILES = "/run/danlu/files"
_PIP_FILE = "/etc/xdg/pip/pip.conf"
_UV_FILE = "/etc/xdg/uv/uv.toml"

# Options that say where packages come from and how they are reached; the others (caches, user
# installs, log files) are the machine's own business.
_PIP_LISTS = ("extra-index-url", "find-links", "trusted-host")
_PIP_VALUES = ("index-url", "no-index", "timeout", "retries", "prefer-binary", "proxy")
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


class Indexes(msgspec.Struct, frozen=True):
    """pip's options, uv's keys, and the mounts that the paths among them need."""

    pip: Mapping[str, str | tuple[str, ...]] = {}
    uv: Mapping[str, object] = {}
    mounts: tuple[Mount, ...] = ()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of pip and uv that hold no place and are passed on as they are."""
    return {name: environ[name] for name in _PASSED if environ.get(name)}


def read(environ: Mapping[str, str]) -> Indexes:
    """What this machine's pip and uv use, with paths as they are inside."""
    places: dict[str, Path] = {}

    def moved(value: str) -> str:
        return inside(value, places, below=_FILES)

    pip = _translated(_pip(environ), moved)
    uv = _uv(environ, moved)
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


def _pip(environ: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    found: dict[str, str | tuple[str, ...]] = {}
    for name, text in pip_options(environ).items():
        if name in _PIP_LISTS:
            found[name] = words(text)
        elif name in _PIP_VALUES:
            found[name] = text
    return found


def _translated(
    values: Mapping[str, str | tuple[str, ...]], moved: Callable[[str], str]
) -> dict[str, str | tuple[str, ...]]:
    places = ("index-url", "extra-index-url", "find-links")
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in values.items():
        if name not in places:
            found[name] = value
        elif isinstance(value, str):
            found[name] = moved(value)
        else:
            found[name] = tuple(map(moved, value))
    return found


def _pip_text(values: Mapping[str, str | tuple[str, ...]]) -> str:
    lines = ["[global]"]
    for name, value in values.items():
        several = (value,) if isinstance(value, str) else value
        lines.append(f"{name} = " + "\n    ".join(several))
    return "\n".join(lines) + "\n"


def _uv_text(values: Mapping[str, object]) -> str:
    """TOML, whose strings, booleans and arrays are JSON's; tables go last."""
    tables = values.get("index", ())
    lines = [f"{key} = {_json(value)}" for key, value in values.items() if value is not tables]
    for table in tables if isinstance(tables, list) else ():
        lines += ["", "[[index]]"]
        lines += [f"{key} = {_json(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _uv(environ: Mapping[str, str], moved: Callable[[str], str]) -> dict[str, object]:
    settings = uv_settings(environ)
    found = {key: settings[key] for key in _UV_KEYS if key in settings}
    found |= _uv_variables(environ)
    return {key: _moved(key, value, moved) for key, value in found.items()}


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


def _moved(key: str, value: object, moved: Callable[[str], str]) -> object:
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


def _uv_of_pip(values: Mapping[str, str | tuple[str, ...]]) -> dict[str, object]:
    """pip's options in uv's words, for a machine that configures pip only."""
    found: dict[str, object] = {}
    if "index-url" in values:
        found["index-url"] = values["index-url"]
    if str(values.get("no-index", "")).lower() in TRUE:
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


def inside(value: str, places: dict[str, Path], *, below: str) -> str:
    """``value`` as it is to be written inside, where this machine's paths lie below ``below``.

    ``value`` is an address or a path; what is not of this machine stays as it is. ``places`` gets
    the directory or file to mount, by its path inside.
    """
    split = urlsplit(value)
    if split.scheme not in ("", "file") or split.netloc not in ("", "localhost"):
        return value
    path = Path(os.path.expanduser(unquote(split.path) if split.scheme else value))
    if not path.is_absolute() or not path.exists() or path == Path("/"):
        return value
    # A page, and those of a "simple" index, point to files beside them.
    beside = path.name == "simple" or path.is_file()
    shown = path.parent if beside and len(path.parts) > 2 else path
    places[f"{below}{shown}"] = Path(os.path.realpath(shown))
    return f"file://{quote(below + str(path))}" if split.scheme else f"{below}{path}"
