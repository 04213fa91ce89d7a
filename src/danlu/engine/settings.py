"""The user's paths and configuration, which every command gets."""

from __future__ import annotations

import msgspec

from danlu.util.config import Configuration, load_configuration
from danlu.util.danlu_program import DEFAULT_ENGINE, LOCAL_CONTEXT
from danlu.util.paths import Paths


class Settings(msgspec.Struct, frozen=True):
    """Paths and configuration of the user, the same for all projects.

    ``context`` is the name of the context in which the command runs, ``engine`` its engine.
    """

    paths: Paths
    config: Configuration
    engine: str = DEFAULT_ENGINE
    context: str = LOCAL_CONTEXT


def load_settings(paths: Paths | None = None) -> Settings:
    """Load the settings; raises :class:`UsageError` if the configuration file is invalid."""
    paths = paths or Paths.of()
    return Settings(paths, load_configuration(paths.config_file))
