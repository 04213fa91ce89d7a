"""The effective value of every setting, and where it comes from."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.util.config import load_configuration
from danlu.util.urls import mask_values

if TYPE_CHECKING:
    from danlu.util.paths import Paths

#: The variable that selects each directory unless ``DANLU_HOME`` is set.
_DIRECTORY_VARIABLES = {
    "config": "XDG_CONFIG_HOME",
    "store": "XDG_DATA_HOME",
    "cache": "XDG_DATA_HOME",
    "logs": "XDG_STATE_HOME",
}


class EffectiveSetting(msgspec.Struct, frozen=True):
    """A setting: its dotted name, its value, and the file or variable that sets it.

    Passwords in URLs are masked.
    """

    name: str
    value: Any
    origin: str


def list_settings(
    paths: Paths, environ: Mapping[str, str] | None = None
) -> tuple[EffectiveSetting, ...]:
    """Return all settings, then the directories, in a fixed order.

    Raises :class:`~danlu.errors.UsageError` if the configuration is invalid.
    """
    env = os.environ if environ is None else environ
    config = load_configuration(paths.config_file, env)
    return (
        *_list_fields(config, _read_config_file(paths), paths, env),
        *_list_directories(paths, env),
    )


def _read_config_file(paths: Paths) -> Mapping[str, Any]:
    """Return the content of the configuration file."""
    if not paths.config_file.exists():
        return {}
    return tomllib.loads(paths.config_file.read_text(encoding="utf-8"))


def _list_fields(
    config: Any, written: Mapping[str, Any], paths: Paths, env: Mapping[str, str]
) -> Iterator[EffectiveSetting]:
    file = str(paths.config_file)
    for name, value in msgspec.structs.asdict(config).items():
        if isinstance(value, dict):
            origin = file if name in written else "default"
            yield from _list_table(name, value, written.get(name, {}), origin)
        elif isinstance(value, msgspec.Struct):
            given = written.get(name, {})
            for field, field_value in msgspec.structs.asdict(value).items():
                origin = _find_origin(f"{name}_{field}", env, file if field in given else "default")
                yield EffectiveSetting(
                    f"{name}.{field}", _to_plain_data(mask_values(field_value)), origin
                )
        else:
            origin = _find_origin(name, env, file if name in written else "default")
            yield EffectiveSetting(name, _to_plain_data(mask_values(value)), origin)


def _find_origin(name: str, env: Mapping[str, str], otherwise: str) -> str:
    variable = f"DANLU_{name.upper()}"
    return variable if env.get(variable) else otherwise


def _list_table(
    name: str, value: Mapping[str, Any], written: Mapping[str, Any], origin: str
) -> Iterator[EffectiveSetting]:
    """List a setting for each field of each table (``[mirrors.debian]``); an empty one for none."""
    if not value:
        yield EffectiveSetting(name, {}, origin)
    for key, struct in value.items():
        quoted = key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'
        for field, field_value in msgspec.to_builtins(struct).items():
            field_origin = origin if field in written.get(key, {}) else "default"
            yield EffectiveSetting(
                f"{name}.{quoted}.{field}", _to_plain_data(mask_values(field_value)), field_origin
            )


def _to_plain_data(value: Any) -> Any:
    """Convert a tuple to a list, as in TOML and JSON."""
    return list(value) if isinstance(value, tuple) else value


def _list_directories(paths: Paths, env: Mapping[str, str]) -> Iterator[EffectiveSetting]:
    directories = {
        "config": paths.config_file,
        "store": paths.store,
        "cache": paths.cache,
        "logs": paths.logs,
    }
    for name, path in directories.items():
        variable = "DANLU_HOME" if env.get("DANLU_HOME") else _DIRECTORY_VARIABLES[name]
        chosen = env.get(variable, "")
        given = bool(chosen) and (variable == "DANLU_HOME" or chosen.startswith("/"))
        yield EffectiveSetting(f"paths.{name}", str(path), variable if given else "default")
