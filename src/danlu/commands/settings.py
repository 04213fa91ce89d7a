"""What every command is given besides its own arguments: the user's paths and configuration."""

from __future__ import annotations

import msgspec

from danlu.util.config import Configuration, load_configuration
from danlu.util.paths import Paths

__all__ = ["Settings", "load_settings"]


class Settings(msgspec.Struct, frozen=True):
    """Where things lie, and what the user set once for all projects."""

    paths: Paths
    config: Configuration


def load_settings(paths: Paths | None = None) -> Settings:
    """The settings of this process's user; raises :class:`UsageError` where a file is wrong."""
    paths = paths or Paths.of()
    return Settings(paths, load_configuration(paths.config_file))
