"""What resolving needs, and what is wrong with a build file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.lock import FunctionLock
from danlu.errors import ResolveError, UsageError
from danlu.graph.ops import Platform

if TYPE_CHECKING:
    from danlu.store import Layer, Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths


class ResolveContext(msgspec.Struct, frozen=True):
    """What resolving needs: the project, the user's settings, and which versions may change.

    ``upgrade`` names packages that may take newer versions, ``upgrade_all`` allows it for
    everything; otherwise locked versions are kept if possible. ``build_system`` returns the layers
    of a lock's base and system packages, to run programs in. ``report`` prints a line for the user,
    ``on_output`` receives the output of such programs.
    """

    project: Path
    paths: Paths
    config: Configuration
    platform: Platform
    store: Store
    build_system: Callable[[FunctionLock], Awaitable[Sequence[Layer]]]
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False
    report: Callable[[str], None] = lambda text: None
    on_output: Callable[[str], None] = lambda text: None

    @property
    def refresh(self) -> bool:
        """Whether cached package lists must be refreshed."""
        return self.upgrade_all or bool(self.upgrade)

    def may_change(self, name: str) -> bool:
        """Return whether the user asked to upgrade what the lock calls ``name``."""
        return self.upgrade_all or name in self.upgrade


class ProblemCollector:
    """Collects what is wrong with a build file, so that one error lists all of it.

    Failures of the network or the machine are not collected: they end the resolution.
    """

    def __init__(self) -> None:
        self._errors: list[UsageError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep a :class:`UsageError` of the block for :meth:`raise_all`."""
        try:
            yield
        except UsageError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raise the error, or one that lists all errors in the order of the file."""
        if not self._errors:
            return
        errors = sorted(self._errors, key=lambda error: error.span.line if error.span else 0)
        if len(errors) == 1:
            raise errors[0]
        details: list[str] = []
        for error in errors:
            details.append(f"{error.span}: {error.message}" if error.span else error.message)
            details += [f"    {line}" for line in error.details]
            if error.hint:
                details.append(f"    hint: {error.hint}")
        raise ResolveError(
            f"{len(errors)} problems", span=errors[0].span, details=tuple(details)
        ) from errors[0]
