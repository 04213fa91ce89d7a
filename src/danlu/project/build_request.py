"""What to build for which platforms, and the results of a build."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import UsageError

# Values of these types come from modules that a build without changes does not load.
if TYPE_CHECKING:
    from danlu.builder.embedded.context import VertexReport
    from danlu.engine.settings import Settings
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.graph.ops import Platform
    from danlu.graph.progress import Progress
    from danlu.project.project import Project
    from danlu.store import StoredImage

#: The platforms whose packages danlu knows, whatever this machine is.
_PLATFORMS = ("linux/amd64", "linux/arm64")


class BuildOptions(msgspec.Struct, frozen=True):
    """The options of ``danlu build``; see the reference of the command line.

    An empty ``compression`` means zstd for outputs and gzip for pushes. ``ssh`` is the socket of
    the agent for steps with ``ssh=True``, or None for no agent. ``trusted`` is whether the build
    file is the user's own. ``cache_from`` and ``cache_to`` are
    caches of BuildKit, as ``buildctl`` reads them.
    """

    tags: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    push: bool = False
    builder: str = ""
    platform: str = ""
    frozen: bool = False
    offline: bool = False
    no_cache: bool = False
    secrets: tuple[tuple[str, Path], ...] = ()
    ssh: Path | None = None
    debug: bool = False
    trusted: bool = True
    metadata_file: Path | None = None
    compression: str = ""
    bytecode: bool = False
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()

    @property
    def ignores_cache(self) -> bool:
        """Whether to solve every vertex again.

        A cache is exported from the steps that BuildKit was asked for, cached there or not, so all
        of them are.
        """
        return self.no_cache or bool(self.cache_to)


class BuildRequest(msgspec.Struct, frozen=True):
    """What to build, and how; ``started`` is a monotonic time."""

    project: Project
    settings: Settings
    options: BuildOptions
    progress: Progress
    started: float = msgspec.field(default_factory=time.monotonic)

    @property
    def builder(self) -> str:
        """The name of the builder: the option's, else the configuration's."""
        return self.options.builder or self.settings.config.builder


class BuildOutcome(msgspec.Struct, frozen=True):
    """An image, how it is started, the vertices that were solved, and how the lock changed.

    ``depends_on`` and ``epoch`` are as in :class:`BuildReport`.
    """

    image: StoredImage
    runtime: RuntimeSettings
    vertices: tuple[VertexReport, ...] = ()
    lock_changes: tuple[str, ...] = ()
    unchanged: bool = False
    depends_on: tuple[Path, ...] = ()
    epoch: str = ""


class LayerReport(msgspec.Struct, frozen=True):
    """A layer of a built image; ``digest`` is empty until the layer is compressed."""

    digest: str
    diff_id: str
    size: int
    created_by: str


class StepReport(msgspec.Struct, frozen=True):
    """A vertex of a build; ``line`` is its place in the build file, or empty."""

    name: str
    cached: bool
    seconds: float
    line: str
    digest: str = ""
    size: int = 0


class BuildReport(msgspec.Struct, frozen=True):
    """The result of a build.

    ``digest`` is the manifest's, empty if nothing was exported or pushed. ``depends_on`` lists the
    files and layers that an unchanged build was recognised by, and ``epoch`` is the store's from
    before it was read; both are empty if the build file had to be evaluated.
    """

    digest: str
    config: str
    size: int
    layers: tuple[LayerReport, ...]
    lock: str
    vertices: tuple[StepReport, ...]
    seconds: float
    builder: str
    names: tuple[str, ...] = ()
    lock_changes: tuple[str, ...] = ()
    unchanged: bool = False
    outputs: tuple[str, ...] = ()
    depends_on: tuple[Path, ...] = ()
    epoch: str = ""
    note: str = ""


def choose_platforms(text: str) -> tuple[Platform, ...]:
    """Parse ``linux/amd64,linux/arm64``; an empty text means this machine's platform.

    Raises :class:`UsageError` for an invalid platform, and for one that is neither this machine's
    nor one of those that danlu knows the packages of.
    """
    from danlu.graph.ops import parse_platform  # an unchanged build needs neither
    from danlu.sandbox.emulation import host_platform

    if not text:
        return (host_platform(),)
    platforms = tuple(dict.fromkeys(parse_platform(part) for part in text.split(",")))
    for platform in platforms:
        if str(platform) not in _PLATFORMS and platform != host_platform():
            raise UsageError(f"cannot build for {platform}", hint=f"use {' or '.join(_PLATFORMS)}")
    return platforms


def choose_platform(text: str) -> Platform:
    """Parse one platform as :func:`choose_platforms` does; raise for several."""
    platforms = choose_platforms(text)
    if len(platforms) > 1:
        raise UsageError(f"expected one platform, not {text!r}", hint="name a single platform")
    return platforms[0]


def last_build_key(project: Project, platform: Platform) -> str:
    """Return the key of the store's record of the last build for a platform."""
    from danlu.sandbox.emulation import is_foreign  # an unchanged build does not need it

    suffix = f"@{platform}" if is_foreign(platform) else ""
    return f"last-build:{project.directory}:{project.target}{suffix}"
