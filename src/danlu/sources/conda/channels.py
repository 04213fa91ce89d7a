"""Where conda channels are: what the build file, ``.condarc`` files and ``config.toml`` say.

A channel has a *name* that is the same everywhere (``conda-forge``, ``pkgs/main``, or an address
without credentials if the user wrote one) and *locations* on this machine, tried in order. Locks
and images contain names only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from danlu.environment.conda import CondaChannels, strip_channel
from danlu.errors import Span, UsageError
from danlu.util.config import Configuration
from danlu.util.safe_paths import confine_to_project

#: What conda uses without any configuration, except that its default channel is `conda-forge`:
#: that of Anaconda, Inc. is not free of charge for companies.
_ALIAS = "https://conda.anaconda.org"
_DEFAULT_CHANNELS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
_BASE_CHANNELS = ("conda-forge",)

#: Names in a list of channels that stand for "and nothing else".
_NO_DEFAULTS = "nodefaults"


class ChannelSettings(msgspec.Struct, frozen=True):
    """The settings of a ``.condarc`` that say where channels are, and danlu's own mirrors.

    ``channels`` are used after those that a build file names; ``mirrors`` are the locations of a
    channel by its name, in order.
    """

    channels: tuple[str, ...] = _BASE_CHANNELS
    alias: str = _ALIAS
    default_channels: tuple[str, ...] = _DEFAULT_CHANNELS
    custom_channels: Mapping[str, str] = {}
    custom_multichannels: Mapping[str, tuple[str, ...]] = {}
    mirrors: Mapping[str, tuple[str, ...]] = {}

    def list_names(self, first: Iterable[str]) -> dict[str, str]:
        """Return all channels by name, those named ``first`` before the configured ones.

        The value is what the user wrote, with credentials. ``nodefaults`` leaves the configured
        channels out.
        """
        asked = list(first)
        configured = () if _NO_DEFAULTS in asked else self.channels
        names: dict[str, str] = {}
        for channel in (*asked, *configured):
            for text in self._expand_group(channel):
                names.setdefault(self.find_name(text), text)
        return names

    def _expand_group(self, channel: str) -> Iterator[str]:
        if channel == _NO_DEFAULTS:
            return
        if channel in self.custom_multichannels:
            yield from self.custom_multichannels[channel]
        elif channel == "defaults":
            yield from self.default_channels
        else:
            yield channel

    def find_name(self, channel: str) -> str:
        """Return the name of a channel that was written as a name, address or path."""
        text = strip_channel(channel).rstrip("/")
        if "://" not in text:
            return text
        alias = strip_channel(self.alias).rstrip("/")
        if text.startswith(f"{alias}/"):
            return text.removeprefix(f"{alias}/")
        if channel in self.default_channels:
            # Mirrors keep the last two parts of the address: …/pkgs/main.
            return "/".join(text.split("/")[-2:])
        for name, parent in self.custom_channels.items():
            if text == f"{strip_channel(parent).rstrip('/')}/{name}":
                return name
        return text

    def locate(self, name: str, project: Path) -> tuple[str, ...]:
        """Return the addresses of a channel, with credentials, in the order to try."""
        if name in self.mirrors:
            return self.mirrors[name]
        if "://" in name:
            return (name,)
        if name.startswith(("/", "./", "../", "~")):
            path = (project / Path(name).expanduser()).resolve()
            return (f"file://{quote(str(path))}",)
        for channel in self.default_channels:
            if self.find_name(channel) == name:
                return (channel.rstrip("/"),)
        first, _, rest = name.partition("/")
        # conda looks for the whole name, then for its first part: conda-forge/label/dev.
        if name in self.custom_channels:
            return (f"{self.custom_channels[name].rstrip('/')}/{name}",)
        if rest and first in self.custom_channels:
            return (f"{self.custom_channels[first].rstrip('/')}/{name}",)
        return (f"{self.alias.rstrip('/')}/{name}",)

    def list_places(self) -> tuple[str, ...]:
        """Return the addresses of all channels that the settings name."""
        groups = self.custom_multichannels.values(), self.mirrors.values()
        listed = [place for group in groups for places in group for place in places]
        return (
            *(*self.channels, self.alias, *self.default_channels),
            *(*self.custom_channels.values(), *listed),
        )


def find_local_path(channel: str, project: Path) -> Path | None:
    """Return the directory of a channel that was written as a path or ``file`` address."""
    if channel.startswith("file:"):
        return Path(unquote(urlsplit(channel).path))
    if channel.startswith(("/", "./", "../", "~")):
        return Path(os.path.normpath(project / Path(channel).expanduser()))
    return None


def confine_channels(
    channels: Iterable[str], declared: CondaChannels | None, config: Configuration, project: Path
) -> None:
    """Raise :class:`UsageError` for a channel of the build file that reads outside the project.

    ``channels`` are those that the build file and its environment files name. A directory that the
    user's own ``.condarc`` or ``config.toml`` names, or one below it, may be used.
    """
    own = read_channel_settings(None, config)
    allowed = [place for text in own.list_places() if (place := find_local_path(text, project))]
    named: list[tuple[str, Span | None]] = [(channel, None) for channel in channels]
    if declared is not None:
        settings = _parse_settings(declared.source, "config.conda_channel()", declared.span)
        places = ChannelSettings(**{"channels": (), "default_channels": (), **settings})
        named += [(place, declared.span) for place in places.list_places()]
    for channel, span in named:
        path = find_local_path(channel, project)
        if path is None or any(path.is_relative_to(place) for place in allowed):
            continue
        confine_to_project(
            path,
            project,
            hint="copy the channel into the project, or name its directory in your ~/.condarc",
            span=span,
        )


def read_channel_settings(
    declared: CondaChannels | None, config: Configuration, environ: Mapping[str, str] | None = None
) -> ChannelSettings:
    """Return the settings of the build file over those of the user's ``.condarc`` files.

    Mirrors of ``config.toml`` (``[mirrors.conda-forge]``) win over both. Raises
    :class:`UsageError` naming a file that is invalid.
    """
    env = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    for path in _list_files(env):
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}: {error}") from error
        # The user's own file may take a token from the environment, as in conda.
        merged |= _parse_settings(os.path.expandvars(text), str(path), None)
    if declared is not None:
        merged |= _parse_settings(declared.source, "config.conda_channel()", declared.span)
    mirrors = {
        name: tuple(url.rstrip("/") for url in mirror.urls)
        for name, mirror in config.mirrors.items()
        if mirror.urls
    }
    return ChannelSettings(**merged, mirrors=mirrors)


def _list_files(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that conda reads, from the least to the most important."""
    home = Path(env.get("HOME") or Path.home())
    yield Path("/etc/conda/.condarc")
    yield Path(env.get("XDG_CONFIG_HOME") or home / ".config", "conda", ".condarc")
    yield home / ".conda" / ".condarc"
    yield home / ".condarc"
    if env.get("CONDARC"):
        yield Path(env["CONDARC"])


def _parse_settings(text: str, source: str, span: Span | None) -> dict[str, Any]:
    """Return the fields of :class:`ChannelSettings` that the text of a ``.condarc`` sets."""
    # Most machines have no such file, and PyYAML takes longer to load than all else here.
    from danlu.util.yaml_with_lines import read_yaml

    try:
        values, _ = next(read_yaml(text, source, text_only=True), ({}, None))
    except UsageError as error:  # without the line, which may contain a token
        raise UsageError(error.message, span=span or error.span) from error
    if not isinstance(values, dict):
        raise UsageError(
            f"{source}: a .condarc is a mapping, such as `channels: [conda-forge]`", span=span
        )
    found: dict[str, Any] = {}
    for key, field in (("channels", "channels"), ("default_channels", "default_channels")):
        if values.get(key):
            found[field] = _read_list(values[key], key, source, span)
    if values.get("channel_alias"):
        found["alias"] = str(values["channel_alias"])
    for key in ("custom_channels", "custom_multichannels"):
        mapping = values.get(key) or {}
        if not isinstance(mapping, dict):
            raise UsageError(f"{source}: {key} must be a mapping", span=span)
        if mapping:
            found[key] = {
                str(name): str(value)
                if key == "custom_channels"
                else _read_list(value, key, source, span)
                for name, value in mapping.items()
            }
    return found


def _read_list(value: Any, key: str, source: str, span: Span | None) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{source}: {key} must be a list of channels", span=span)
    return tuple(items)
