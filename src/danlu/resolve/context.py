"""What resolving needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.lock import FunctionLock
from danlu.graph.ops import Platform

if TYPE_CHECKING:
    from danlu.sandbox.types import Mount
    from danlu.store import Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths


class ResolveContext(msgspec.Struct, frozen=True):
    """What resolving needs: the project, the user's settings, and which versions may change.

    ``upgrade`` names packages that may take newer versions, ``upgrade_all`` allows it for
    everything; otherwise locked versions are kept if possible. ``run_in_system`` runs a program in
    a lock's base and system packages, and returns its exit code. ``report`` prints a line for the
    user.
    """

    project: Path
    paths: Paths
    config: Configuration
    platform: Platform
    store: Store
    run_in_system: Callable[
        [FunctionLock, Sequence[str], Sequence[Mount], Mapping[str, str]], Awaitable[int]
    ]
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False
    report: Callable[[str], None] = lambda text: None

    @property
    def refresh(self) -> bool:
        """Whether cached package lists must be refreshed."""
        return self.upgrade_all or bool(self.upgrade)

    def may_change(self, name: str) -> bool:
        """Return whether the user asked to upgrade what the lock calls ``name``."""
        return self.upgrade_all or name in self.upgrade
