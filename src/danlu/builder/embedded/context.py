"""What the executor of one op is given to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import msgspec

from danlu.graph import ImageConfig

if TYPE_CHECKING:
    from danlu.environment.types import AptSource
    from danlu.sandbox.sandbox import Sandbox
    from danlu.sources.pypi.ahead import Ahead
    from danlu.sources.pypi.indexes import Indexes
    from danlu.store import Layer, Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = ["Context", "Made", "Result"]

P = ParamSpec("P")
T = TypeVar("T")


class Result(msgspec.Struct, frozen=True):
    """What a vertex gave: its new layers, lowest first, and files for those that stand on it.

    ``stack`` is everything below and including the vertex. ``artifacts`` maps a name to a file in
    the cache or the store (a built wheel). ``inherited`` is the configuration of the image at the
    bottom of the stack.
    """

    layers: tuple[Layer, ...]
    stack: tuple[Layer, ...]
    artifacts: Mapping[str, Path] = {}
    inherited: ImageConfig = msgspec.field(default_factory=ImageConfig)


class Made(msgspec.Struct, frozen=True):
    """What an op's executor gives where it is more than layers.

    ``artifacts`` are files for the vertices that stand on it, by name; ``inherited`` the
    configuration that images built on it keep, None for that of the first input.
    """

    layers: tuple[Layer, ...] = ()
    artifacts: Mapping[str, Path] = {}
    inherited: ImageConfig | None = None


class RunSync(Protocol):
    """Run a blocking function in a worker thread."""

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Await ``function(*args, **kwargs)``; cancelling waits for its end."""


class Context(msgspec.Struct, frozen=True):
    """The builder's side of one vertex.

    ``sandbox`` gives where programs run, made for the first that asks: most builds run none.
    ``below`` is the stack the op runs in or lies over; ``inputs`` are all inputs' results in
    order; ``log`` takes lines, ``transfer`` bytes (current, total); ``offline`` forbids the
    network; ``debug`` asks for a shell where a step fails; ``secrets`` maps ids to files of this
    machine, ``ssh`` is the socket of an agent; ``project`` is the build's directory;
    ``apt_source`` and ``indexes`` are where the user's file says packages come from; ``ahead`` is
    wheels that are under way already.
    """

    store: Store
    paths: Paths
    config: Configuration
    sandbox: Callable[[], Sandbox]
    project: Path
    below: tuple[Layer, ...]
    inputs: tuple[Result, ...]
    log: Callable[[str], None]
    transfer: Callable[[int, int], None]
    run_sync: RunSync
    offline: bool = False
    debug: bool = False
    apt_source: AptSource | None = None
    indexes: Indexes | None = None
    ahead: Ahead | None = None
    secrets: Mapping[str, Path] = {}
    ssh: Path | None = None
