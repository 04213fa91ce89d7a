"""``danlu config``: every setting as it holds now, and where its value comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from danlu.util.paths import Paths

__all__ = ["Setting", "effective"]

#: The variable that decides each directory where ``DANLU_HOME`` does not.
_DIRECTORIES = {
    "config": "XDG_CONFIG_HOME",
    "store": "XDG_DATA_HOME",
    "cache": "XDG_DATA_HOME",
    "logs": "XDG_STATE_HOME",
}

#: ``user:password@`` in an address: shown on a screen, it is in the next screenshot.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


class Setting(msgspec.Struct, frozen=True):
    """One setting: dotted name, value as plain data, and the file or variable it is from.

    Passwords within addresses are left out.
    """

    name: str
    value: Any
    origin: str


def effective(paths: Paths, environ: Mapping[str, str] | None = None) -> tuple[Setting, ...]:
    """All settings, then the directories, in a fixed order.

    Raises :class:`~danlu.errors.UsageError` where the configuration is wrong.
    """
    from danlu.util.config import load_configuration

    env = os.environ if environ is None else environ
    config = load_configuration(paths.config_file, env)
    return (*_settings(config, _written(paths), paths, env), *_directories(paths, env))


def _written(paths: Paths) -> Mapping[str, Any]:
    """What the file itself says."""
    import tomllib

    if not paths.config_file.exists():
        return {}
    return tomllib.loads(paths.config_file.read_text(encoding="utf-8"))


def _settings(
    config: Any, written: Mapping[str, Any], paths: Paths, env: Mapping[str, str]
) -> Iterator[Setting]:
    file = str(paths.config_file)
    for name, value in msgspec.structs.asdict(config).items():
        if isinstance(value, dict):
            origin = file if name in written else "default"
            yield from _nested(name, value, written.get(name, {}), origin)
        elif isinstance(value, msgspec.Struct):
            said = written.get(name, {})
            for field, one in msgspec.structs.asdict(value).items():
                origin = _origin(f"{name}_{field}", env, file if field in said else "default")
                yield Setting(f"{name}.{field}", _shown(one), origin)
        else:
            origin = _origin(name, env, file if name in written else "default")
            yield Setting(name, _shown(value), origin)


def _origin(name: str, env: Mapping[str, str], otherwise: str) -> str:
    variable = f"DANLU_{name.upper()}"
    return variable if env.get(variable) else otherwise


def _nested(
    name: str, value: Mapping[str, Any], written: Mapping[str, Any], origin: str
) -> Iterator[Setting]:
    """``[mirrors.debian]``: a setting for each field of each table; an empty one is one setting."""
    if not value:
        yield Setting(name, {}, origin)
    for key, struct in value.items():
        quoted = key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'
        for field, one in msgspec.to_builtins(struct).items():
            said = field in written.get(key, {})
            yield Setting(f"{name}.{quoted}.{field}", _shown(one), origin if said else "default")


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return _CREDENTIALS.sub("…@", value)
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _directories(paths: Paths, env: Mapping[str, str]) -> Iterator[Setting]:
    places = {
        "config": paths.config_file,
        "store": paths.store,
        "cache": paths.cache,
        "logs": paths.logs,
    }
    for name, path in places.items():
        variable = "DANLU_HOME" if env.get("DANLU_HOME") else _DIRECTORIES[name]
        chosen = env.get(variable, "")
        given = bool(chosen) and (variable == "DANLU_HOME" or chosen.startswith("/"))
        yield Setting(f"paths.{name}", str(path), variable if given else "default")
