"""Where danlu keeps its files: the XDG base directories, or below ``DANLU_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from danlu.util.xdg import base_directory


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one user. Nothing is created by naming a path.

    ``store`` and ``cache`` are both below the data directory and so on one file system, because
    trees are moved between them by hard links and renames.
    """

    config: Path
    data: Path
    state: Path

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """Return the directories that ``environ`` (default: this process's environment) selects."""
        env = os.environ if environ is None else environ
        home = env.get("DANLU_HOME")
        if home:
            root = Path(home).absolute()
            return cls(config=root / "config", data=root, state=root / "state")
        return cls(
            config=Path(base_directory(env, "XDG_CONFIG_HOME", ".config"), "danlu"),
            data=Path(base_directory(env, "XDG_DATA_HOME", ".local/share"), "danlu"),
            state=Path(base_directory(env, "XDG_STATE_HOME", ".local/state"), "danlu"),
        )

    @property
    def store(self) -> Path:
        """Blobs, layers and records."""
        return self.data / "store"

    @property
    def cache(self) -> Path:
        """Downloads (``apt``, ``uv``, ``git``, ``http``), shared by all projects."""
        return self.data / "cache"

    @property
    def jobs(self) -> Path:
        """One directory per training job of this machine."""
        return self.data / "jobs"

    @property
    def kept_data(self) -> Path:
        """The directories that build files name with ``data.envd``, shared by all projects."""
        return self.data / "data"

    @property
    def vscode_servers(self) -> Path:
        """Servers of VS Code that ``danlu vscode add`` keeps, by commit."""
        return self.data / "vscode"

    @property
    def certificates(self) -> Path:
        """Certificates and keys of servers on this machine."""
        return self.data / "certificates"

    @property
    def logs(self) -> Path:
        """One log file per run."""
        return self.state / "logs"

    @property
    def config_file(self) -> Path:
        """``config.toml``."""
        return self.config / "config.toml"

    @property
    def environments(self) -> Path:
        """One directory per environment of ``danlu up``."""
        return self.data / "environments"
