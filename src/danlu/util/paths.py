"""Where danlu keeps things: the XDG directories, all moved by ``DANLU_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Paths"]


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one user.

    ``store`` and ``cache`` lie on one file system (both below the data directory), because trees
    are made by hard links and renames between them. Nothing is created by naming it.
    """

    config: Path
    data: Path
    state: Path

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """The directories that ``environ`` (default: this process's) asks for."""
        env = os.environ if environ is None else environ
        home = env.get("DANLU_HOME")
        if home:
            root = Path(home).absolute()
            return cls(config=root / "config", data=root, state=root / "state")
        user = Path(env.get("HOME") or os.path.expanduser("~"))

        def xdg(variable: str, default: str) -> Path:
            value = env.get(variable, "")
            # XDG base directory specification: relative paths are to be ignored.
            return Path(value) if value.startswith("/") else user / default

        return cls(
            config=xdg("XDG_CONFIG_HOME", ".config") / "danlu",
            data=xdg("XDG_DATA_HOME", ".local/share") / "danlu",
            state=xdg("XDG_STATE_HOME", ".local/state") / "danlu",
        )

    @property
    def store(self) -> Path:
        """Blobs, layers, records."""
        return self.data / "store"

    @property
    def cache(self) -> Path:
        """Downloads (``apt``, ``uv``, ``git``, ``http``), shared by all projects."""
        return self.data / "cache"

    @property
    def jobs(self) -> Path:
        """One directory a training job of this machine."""
        return self.data / "jobs"

    @property
    def certificates(self) -> Path:
        """Certificates of servers on this machine, with their keys."""
        return self.data / "certificates"

    @property
    def logs(self) -> Path:
        """One log file a run."""
        return self.state / "logs"

    @property
    def config_file(self) -> Path:
        """``config.toml``."""
        return self.config / "config.toml"
