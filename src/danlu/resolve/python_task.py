"""One resolution of Python packages: what is asked, and what there is to answer it with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from danlu.environment.lock import LockedPackage
from danlu.sources.pypi import Indexes, Target

if TYPE_CHECKING:
    from danlu.environment.types import PythonPackages
    from danlu.resolve.python_wanted import Wanted
    from danlu.sandbox.types import Mount
    from danlu.util.paths import Paths

__all__ = ["PythonRequest", "RunInside", "Task"]


class RunInside(Protocol):
    """Runs a program in the image the packages are for."""

    def __call__(
        self, args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> Awaitable[int]:
        """Its exit code. The root file system is thrown away; there is a network."""


class PythonRequest(msgspec.Struct, frozen=True):
    """What is to be resolved, for whom, and with what.

    ``executable`` is the interpreter's path in the image; ``run_inside`` runs a program there, and
    is None where nothing can be run (then what has to be built is refused).
    """

    declared: Sequence[PythonPackages]
    target: Target
    project: Path
    paths: Paths
    indexes: Indexes = msgspec.field(default_factory=Indexes)
    offline: bool = False
    executable: str = "python3"
    run_inside: RunInside | None = None
    say: Callable[[str], None] = lambda text: None


class Task(msgspec.Struct, frozen=True):
    """A request at work: what it declares, read; what stays by name; a directory of its own.

    ``renew`` are uv's options for what may leave its locked version.
    """

    request: PythonRequest
    wanted: Wanted
    kept: Mapping[str, LockedPackage]
    renew: Sequence[str]
    scratch: Path
