"""``danlu build``: lock what is not locked, build what is not built, hand out what is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from danlu.errors import NotBuiltYet, UsageError
from danlu.oci.digest import sha256

if TYPE_CHECKING:
    from danlu.builder.types import Built, Request, VertexReport
    from danlu.commands.buildreport import BuildReport
    from danlu.commands.lock import Locking
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.environment.inputs import Inputs
    from danlu.environment.lock import FunctionLock
    from danlu.environment.types import Environment
    from danlu.graph import Graph, Platform, Progress
    from danlu.sources.pypi.ahead import Ahead
    from danlu.store import Layer, Store, StoredImage

T = TypeVar("T")

__all__ = ["BuildOptions", "build", "image_of"]


class BuildOptions(msgspec.Struct, frozen=True):
    """The flags of ``danlu build``; see the command line's reference.

    An empty ``compression`` is zstd for what is written here, and gzip for what is pushed. ``ssh``
    is the socket of the agent that steps with ``ssh=True`` may use, None for no agent.
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
    metadata_file: Path | None = None
    compression: str = ""


class _Order(msgspec.Struct, frozen=True):
    """A build as it was ordered."""

    project: Project
    settings: Settings
    options: BuildOptions
    progress: Progress
    began: float = msgspec.field(default_factory=time.monotonic)


class _Asked(msgspec.Struct, frozen=True):
    """An order with what the build file says: all that decides whether it was done before."""

    order: _Order
    environment: Environment
    inputs: Inputs
    platform: Platform

    def key(self, lock_text: str) -> str:
        """Under what a finished build of exactly this is remembered."""
        from danlu.graph.digest import digest_of

        # A lock is taken by its bytes: it need not even be parsed where nothing changed.
        lock = sha256(lock_text.encode())
        return digest_of(["build", _VERSION, self.environment, self.inputs, self.platform, lock])


#: What is loaded while the build file is evaluated in a child: first what the next moves need.
_NEXT = (
    "danlu.environment.inputs",
    "danlu.sources.context",
    "danlu.sources.pypi.requirements",
    "danlu.graph.digest",
    "danlu.sandbox.userns",
    "tomllib",
    "danlu.commands.lock",
    "danlu.resolve.lockfile",
    "danlu.assemble.assemble",
    "danlu.builder.embedded.ahead",
    "danlu.sources.pypi.ahead",
    "asyncio.base_events",
    "asyncio",
    "anyio",
    "danlu.builder.embedded.build",
)

#: Raised when the same environment and lock are to give another image than before.
_VERSION = 2


def build(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Build the project's environment and give what ``options`` ask for.

    Raises :class:`~danlu.errors.DanluError` of many kinds; nothing is half-done then: the lock is
    replaced whole or not at all, and names move only to finished images.
    """
    order = _Order(project, settings, options, progress)
    return _fulfil(order, lambda store, image: _finish(order, store, image))


def image_of(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> StoredImage:
    """The image of the project's environment, built where it is not there yet."""
    order = _Order(project, settings, options, progress)
    return _fulfil(order, lambda store, outcome: outcome.image)


def _fulfil(order: _Order, give: Callable[[Store, _Outcome], T]) -> T:
    """What ``give`` makes of the image, which is found or built."""
    from danlu.store import Store

    if order.options.outputs or order.options.push:
        from danlu.sandbox import userns

        # Layers are read with their owners, whom only root of our namespace sees as they are.
        userns.enter(order.settings.paths)
    with Store.open(order.settings.paths.store) as store:
        known = _known(order, store)
        if known is not None:
            return give(store, _Outcome(known, unchanged=True))
        asked = _asked(order)
        known = None if order.options.no_cache else _built_before(asked, store)
        if known is not None:
            return give(store, _Outcome(known, unchanged=True))
        return _build(asked, store, give)


class _Outcome(msgspec.Struct, frozen=True):
    """An image, and how it came about."""

    image: StoredImage
    vertices: tuple[VertexReport, ...] = ()
    changes: tuple[str, ...] = ()
    unchanged: bool = False


def _known(order: _Order, store: Store) -> StoredImage | None:
    """The project's image, if nothing at all changed since it was built."""
    from danlu.commands.known import find

    if order.options.no_cache or order.options.platform:
        return None
    return find(store, order.project)


def _asked(order: _Order) -> _Asked:
    environment = order.project.environment(offline=order.options.offline, meanwhile=_loading())
    # The builder refuses such a graph too, but only after all that was locked for it.
    for call in environment.other:
        if not call.at_start:
            raise NotBuiltYet(call.function, span=call.span)
    return _Asked(
        order=order,
        environment=environment,
        inputs=order.project.inputs(environment),
        platform=parse_platform(order.options.platform),
    )


def _loading() -> Iterator[None]:
    """Load what a build needs next, a module a step; it is needed whether there is time or not."""
    from importlib import import_module

    for name in _NEXT:
        import_module(name)
        yield


def parse_platform(text: str) -> Platform:
    """``linux/amd64`` as a platform; empty for this machine's."""
    import os

    from danlu.graph import Platform

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    if not text:
        return Platform("linux", machine)
    words = text.split("/")
    if len(words) not in (2, 3) or words[0] != "linux":
        raise UsageError(f"{text!r} is not a platform", hint="platforms look like linux/amd64")
    if words[1] != machine:
        raise UsageError(
            f"this machine is linux/{machine}; building for {text} is not possible here yet",
            hint="build on a machine of that kind",
        )
    return Platform(*words)


def _built_before(asked: _Asked, store: Store) -> StoredImage | None:
    """The image an earlier build of exactly this gave, if it is still there."""
    from danlu.commands.known import remember

    project = asked.order.project
    if not project.lock_text:
        return None
    record = store.record(asked.key(project.lock_text))
    image = store.image(record["config"]) if record else None
    if image is not None:
        remember(store, project, asked.inputs, image)
    return image


def _build(asked: _Asked, store: Store, give: Callable[[Store, _Outcome], T]) -> T:
    from danlu.commands import upkeep
    from danlu.graph.progress import Ended
    from danlu.sandbox import userns

    settings = asked.order.settings
    # Before any thread or event loop: a process with threads cannot enter a user namespace.
    userns.enter(settings.paths)
    with store.lease():
        planned = _planned_already(asked)
        with _begun(asked, planned, store) as ahead:
            import anyio  # only now, and what stands on it: something else can be under way

            outcome = anyio.run(partial(_build_async, asked, store, planned, ahead))
        # Whoever draws must have ended before a program that is to run has the terminal.
        asked.order.progress(Ended(time.monotonic() - asked.order.began))
        given = give(store, outcome)
    upkeep.start(outcome.image.digest, settings)
    return given


class _Planned(msgspec.Struct, frozen=True):
    """A graph, how it is to be built, and what of the lock had to change for it."""

    graph: Graph
    request: Request
    lock_changes: tuple[str, ...] = ()


def _planned_already(asked: _Asked) -> _Planned | None:
    """The plan, if the lock is as it should be."""
    locking = _locking(asked)
    lock = locking.section
    return _plan(asked, lock) if lock is not None and not locking.stale else None


@contextmanager
def _begun(asked: _Asked, planned: _Planned | None, store: Store) -> Iterator[Ahead | None]:
    if planned is None:
        yield None
        return
    from danlu.builder.embedded.ahead import begun

    paths = asked.order.settings.paths
    with begun(planned.graph, planned.request, store=store, paths=paths) as ahead:
        yield ahead


async def _build_async(
    asked: _Asked, store: Store, planned: _Planned | None, ahead: Ahead | None
) -> _Outcome:
    if planned is None:
        from danlu.commands.lock import bring_up_to_date

        locked = await bring_up_to_date(_locking(asked), store)
        planned = _plan(asked, locked.lock, locked.lines)
    built = await _run_builder(asked, planned, store, ahead)
    _remember(asked, store, built, planned.graph)
    return _Outcome(built.image, built.vertices, planned.lock_changes)


def _locking(asked: _Asked) -> Locking:
    from danlu.commands.lock import Locking

    order = asked.order
    return Locking(
        order.project,
        asked.environment,
        asked.inputs,
        asked.platform,
        order.settings,
        order.progress,
        frozen=order.options.frozen,
        offline=order.options.offline,
    )


def _plan(asked: _Asked, lock: FunctionLock, changes: tuple[str, ...] = ()) -> _Planned:
    from danlu.assemble import assemble

    chosen = asked.order.options.builder or asked.order.settings.config.builder
    if chosen != "embedded":
        raise UsageError(f"there is no builder {chosen!r} yet", hint="use --builder embedded")
    graph = assemble(asked.environment, lock, asked.inputs, platform=asked.platform)
    return _Planned(graph, _request(asked, lock), changes)


def _request(asked: _Asked, lock: FunctionLock) -> Request:
    from danlu.builder.types import Request

    return Request(
        project=asked.order.project.directory,
        names=asked.order.options.tags,
        offline=asked.order.options.offline,
        fresh=asked.order.options.no_cache,
        secrets=dict(asked.order.options.secrets),
        ssh=asked.order.options.ssh,
        metadata=_metadata(asked, lock),
        debug=asked.order.options.debug,
        apt_source=asked.environment.apt_source,
        pip_index=asked.environment.pip_index,
        requirements=tuple(
            asked.order.project.directory / one.requirements
            for one in asked.environment.python_packages
            if one.requirements
        ),
    )


async def _run_builder(
    asked: _Asked, planned: _Planned, store: Store, ahead: Ahead | None
) -> Built:
    from danlu.builder.embedded.build import build as embedded

    return await embedded(
        planned.graph,
        planned.request,
        store=store,
        paths=asked.order.settings.paths,
        config=asked.order.settings.config,
        progress=asked.order.progress,
        ahead=ahead,
    )


def _metadata(asked: _Asked, lock: FunctionLock) -> dict[str, str]:
    """What the store keeps with the image, beside what the image itself says."""
    from danlu.assemble.layout import scheme_of
    from danlu.commands.bytecode import described

    own = {"file": asked.order.project.file, "function": asked.order.project.function}
    if lock.python is None:
        return own
    return own | described(lock.python.executable, scheme_of(lock.python))


def _remember(asked: _Asked, store: Store, built: Built, graph: Graph) -> None:
    from danlu.commands.known import remember

    text = asked.order.project.lock_path.read_text(encoding="utf-8")
    layers = [layer.diff_id for layer in built.layers]
    store.put_record(asked.key(text), {"config": built.image.digest}, layers=layers)
    vertices = [
        {"name": one.name, "digest": one.digest, "spans": [str(span) for span in one.spans]}
        for one in graph.walk()
    ]
    key = f"last-build:{asked.order.project.directory}:{asked.order.project.function}"
    store.put_record(key, {"vertices": vertices, "config": built.image.digest})
    remember(store, asked.order.project, asked.inputs, built.image)


def _finish(order: _Order, store: Store, outcome: _Outcome) -> BuildReport:
    from danlu.commands.buildreport import BuildReport, layer_report, step_report, write_metadata

    image = outcome.image
    for name in order.options.tags:
        store.tag(name, image.digest)
    manifest, outputs = _hand_out(order, store, image)
    layers = _layers(store, image)
    report = BuildReport(
        digest=manifest,
        config=image.digest,
        layers=tuple(layer_report(store, layer, _compression(order.options)) for layer in layers),
        size=sum(layer.size for layer in layers),
        lock=sha256(order.project.lock_path.read_bytes()),
        vertices=tuple(map(step_report, outcome.vertices)),
        seconds=time.monotonic() - order.began,
        builder="embedded",
        names=order.options.tags,
        lock_changes=outcome.changes,
        unchanged=outcome.unchanged,
        outputs=outputs,
    )
    if order.options.metadata_file:
        write_metadata(report, order.options.metadata_file)
    return report


def _hand_out(order: _Order, store: Store, image: StoredImage) -> tuple[str, tuple[str, ...]]:
    """Write and push what was asked for; the digest of the last manifest made, and places."""
    options = order.options
    if not options.outputs and not options.push:
        return "", ()
    from danlu.commands.export import push_names, write_output

    manifest, places = "", []
    for text in options.outputs:
        manifest, place = write_output(
            store, image, text, names=options.tags, compression=options.compression or "zstd"
        )
        places.append(place)
    if options.push:
        if not options.tags:
            raise UsageError("--push needs a name", hint="give one with -t REGISTRY/NAME:TAG")
        manifest = push_names(
            store,
            image,
            options.tags,
            settings=order.settings,
            compression=options.compression or "gzip",
            progress=order.progress,
        )
        places.extend(options.tags)
    return manifest, tuple(places)


def _layers(store: Store, image: StoredImage) -> list[Layer]:
    found = [store.layer(diff_id) for diff_id in image.layers]
    return [layer for layer in found if layer is not None]


def _compression(options: BuildOptions) -> str:
    # Docker before version 23 cannot read zstd, and a registry serves whoever asks.
    return options.compression or ("gzip" if options.push else "zstd")
