"""``danlu build``: lock what is not locked, build what is not built, hand out what is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.environment.inputs import Inputs
from danlu.environment.types import Environment
from danlu.errors import DanluError, NotBuiltYet, UsageError
from danlu.graph import Graph, Platform, Progress
from danlu.graph.digest import digest_of
from danlu.oci.digest import sha256

if TYPE_CHECKING:
    from danlu.builder.types import Built, VertexReport
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.environment.lock import FunctionLock
    from danlu.store import Layer, Store, StoredImage

__all__ = ["BuildOptions", "BuildReport", "LayerReport", "StepReport", "build", "image_of"]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The flags of ``danlu build``; see the command line's reference."""

    tags: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    push: bool = False
    builder: str = ""
    platform: str = ""
    frozen: bool = False
    offline: bool = False
    no_cache: bool = False
    secrets: tuple[tuple[str, Path], ...] = ()
    ssh: bool = False
    debug: bool = False
    metadata_file: Path | None = None
    compression: str = "zstd"


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer of a finished image; ``digest`` is empty until it was compressed for someone."""

    digest: str
    diff_id: str
    size: int
    created_by: str


@dataclass(frozen=True, slots=True)
class StepReport:
    """One vertex of a finished build; ``line`` is the place in the build file, or empty."""

    name: str
    cached: bool
    seconds: float
    line: str
    digest: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build gave. ``digest`` is a manifest's, empty where none was written or pushed."""

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


@dataclass(frozen=True)
class _Asked:
    """A build as it was asked for, with all that decides whether it was done before."""

    project: Project
    settings: Settings
    options: BuildOptions
    environment: Environment
    inputs: Inputs
    platform: Platform
    progress: Progress
    began: float = field(default_factory=time.monotonic)

    def key(self, lock_text: str) -> str:
        """Under what a finished build of exactly this is remembered."""
        # A lock is taken by its bytes: it need not even be parsed where nothing changed.
        lock = sha256(lock_text.encode())
        return digest_of(["build", _VERSION, self.environment, self.inputs, self.platform, lock])


#: Raised when the same environment and lock are to give another image than before.
_VERSION = 1


def build(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Build the project's environment and give what ``options`` ask for.

    Raises :class:`~danlu.errors.DanluError` of many kinds; nothing is half-done then: the lock is
    replaced whole or not at all, and names move only to finished images.
    """
    from danlu.store import Store

    asked = _asked(project, settings, options, progress)
    with Store.open(settings.paths.store) as store:
        known = None if options.no_cache else _known(asked, store)
        if known is not None:
            return _finish(asked, store, known, (), (), unchanged=True)
    return _build(asked)


def image_of(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> StoredImage:
    """The image of the project's environment, built where it is not there yet."""
    from danlu.store import Store

    asked = _asked(project, settings, options, progress)
    with Store.open(settings.paths.store) as store:
        known = _known(asked, store)
        if known is not None:
            return known
    report = _build(asked)
    with Store.open(settings.paths.store) as store:
        found = store.image(report.config)
    assert found is not None
    return found


def _asked(
    project: Project, settings: Settings, options: BuildOptions, progress: Progress
) -> _Asked:
    environment = project.environment(offline=options.offline)
    refuse_unbuilt(environment)
    return _Asked(
        project=project,
        settings=settings,
        options=options,
        environment=environment,
        inputs=project.inputs(environment),
        platform=parse_platform(options.platform),
        progress=progress,
    )


def refuse_unbuilt(environment: Environment) -> None:
    """Raise :class:`NotBuiltYet` for a call that would change the image and is only planned."""
    for call in environment.other:
        if not call.at_start:
            raise NotBuiltYet(
                f"{call.function} is understood but not built by this version of danlu",
                span=call.span,
                hint="`danlu plan` shows the environment; take the call out to build the rest",
            )


def parse_platform(text: str) -> Platform:
    """``linux/amd64`` as a platform; empty for this machine's."""
    import os

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


def _known(asked: _Asked, store: Store) -> StoredImage | None:
    """The image an earlier build of exactly this gave, if it is still there."""
    if not asked.project.lock_text:
        return None
    record = store.record(asked.key(asked.project.lock_text))
    return store.image(record["config"]) if record else None


def _build(asked: _Asked) -> BuildReport:
    import anyio

    from danlu.commands import upkeep
    from danlu.sandbox import userns
    from danlu.store import Store

    # Before any thread or event loop: a process with threads cannot enter a user namespace.
    userns.enter(asked.settings.paths)
    with Store.open(asked.settings.paths.store) as store, store.lease():
        built, changes = anyio.run(partial(_build_async, asked, store))
        report = _finish(asked, store, built.image, built.vertices, changes, unchanged=False)
    upkeep.start(report.config, asked.settings)
    return report


async def _build_async(asked: _Asked, store: Store) -> tuple[Built, tuple[str, ...]]:
    lock, changes = await _locked(asked, store)
    graph = _graph(asked, lock)
    built = await _run_builder(asked, graph, lock, store)
    _remember(asked, store, built, graph)
    return built, changes


async def _locked(asked: _Asked, store: Store) -> tuple[FunctionLock, tuple[str, ...]]:
    from danlu.commands.lock import bring_up_to_date

    outcome = await bring_up_to_date(
        asked.project,
        asked.environment,
        asked.inputs,
        settings=asked.settings,
        platform=asked.platform,
        store=store,
        frozen=asked.options.frozen,
        offline=asked.options.offline,
        progress=asked.progress,
    )
    return outcome.lock, outcome.lines


def _graph(asked: _Asked, lock: FunctionLock) -> Graph:
    from danlu.assemble import assemble

    return assemble(asked.environment, lock, asked.inputs, platform=asked.platform)


async def _run_builder(asked: _Asked, graph: Graph, lock: FunctionLock, store: Store) -> Built:
    from danlu.builder.embedded.build import build as embedded
    from danlu.builder.types import Request

    chosen = asked.options.builder or asked.settings.config.builder
    if chosen != "embedded":
        raise UsageError(f"there is no builder {chosen!r} yet", hint="use --builder embedded")
    request = Request(
        project=asked.project.directory,
        names=asked.options.tags,
        offline=asked.options.offline,
        fresh=asked.options.no_cache,
        secrets=dict(asked.options.secrets),
        metadata=_metadata(asked, lock),
        debug=asked.options.debug,
        apt_source=asked.environment.apt_source,
        pip_index=asked.environment.pip_index,
        requirements=tuple(
            asked.project.directory / one.requirements
            for one in asked.environment.python_packages
            if one.requirements
        ),
    )
    return await embedded(
        graph,
        request,
        store=store,
        paths=asked.settings.paths,
        config=asked.settings.config,
        progress=asked.progress,
    )


def _metadata(asked: _Asked, lock: FunctionLock) -> dict[str, str]:
    """What the store keeps with the image, beside what the image itself says."""
    from danlu.assemble.layout import scheme_of
    from danlu.commands.bytecode import described

    own = {"file": asked.project.file, "function": asked.project.function}
    if lock.python is None:
        return own
    return own | described(lock.python.executable, scheme_of(lock.python))


def _remember(asked: _Asked, store: Store, built: Built, graph: Graph) -> None:
    text = asked.project.lock_path.read_text(encoding="utf-8")
    layers = [layer.diff_id for layer in built.layers]
    store.put_record(asked.key(text), {"config": built.image.digest}, layers=layers)
    vertices = [
        {"name": one.name, "digest": one.digest, "spans": [str(span) for span in one.spans]}
        for one in graph.walk()
    ]
    key = f"last-build:{asked.project.directory}:{asked.project.function}"
    store.put_record(key, {"vertices": vertices, "config": built.image.digest})


def _finish(
    asked: _Asked,
    store: Store,
    image: StoredImage,
    vertices: tuple[VertexReport, ...],
    changes: tuple[str, ...],
    *,
    unchanged: bool,
) -> BuildReport:
    for name in asked.options.tags:
        store.tag(name, image.digest)
    manifest, outputs = _hand_out(asked, store, image)
    report = BuildReport(
        digest=manifest,
        config=image.digest,
        layers=_layer_reports(asked, store, image),
        size=sum(layer.size for layer in _layers(store, image)),
        lock=sha256(asked.project.lock_path.read_bytes()),
        vertices=tuple(_step_report(one) for one in vertices),
        seconds=time.monotonic() - asked.began,
        builder="embedded",
        names=asked.options.tags,
        lock_changes=changes,
        unchanged=unchanged,
        outputs=outputs,
    )
    if asked.options.metadata_file:
        write_metadata(report, asked.options.metadata_file)
    return report


def _hand_out(asked: _Asked, store: Store, image: StoredImage) -> tuple[str, tuple[str, ...]]:
    """Write and push what was asked for; the digest of the last manifest made, and places."""
    options = asked.options
    if not options.outputs and not options.push:
        return "", ()
    from danlu.commands.export import push_names, write_output

    manifest, places = "", []
    for text in options.outputs:
        manifest, place = write_output(
            store, image, text, names=options.tags, compression=options.compression
        )
        places.append(place)
    if options.push:
        if not options.tags:
            raise UsageError("--push needs a name", hint="give one with -t REGISTRY/NAME:TAG")
        manifest = push_names(
            store,
            image,
            options.tags,
            settings=asked.settings,
            compression=options.compression,
            progress=asked.progress,
        )
        places.extend(options.tags)
    return manifest, tuple(places)


def _layers(store: Store, image: StoredImage) -> list[Layer]:
    found = [store.layer(diff_id) for diff_id in image.layers]
    return [layer for layer in found if layer is not None]


def _layer_reports(asked: _Asked, store: Store, image: StoredImage) -> tuple[LayerReport, ...]:
    reports = []
    for layer in _layers(store, image):
        made = store.compressed(layer.diff_id, asked.options.compression)
        digest = made.digest if made else ""
        reports.append(LayerReport(digest, layer.diff_id, layer.size, layer.created_by))
    return tuple(reports)


def _step_report(one: VertexReport) -> StepReport:
    line = str(one.spans[0]) if one.spans else ""
    return StepReport(one.name, one.cached, one.seconds, line, one.digest, one.size)


def write_metadata(report: BuildReport, path: Path) -> None:
    """Write ``--metadata-file`` in the shape of the CLI contract."""
    import msgspec

    from danlu.util.files import write_atomic

    value: Mapping[str, Any] = {
        "image": {
            "digest": report.digest,
            "config": report.config,
            "size": report.size,
            "layers": msgspec.to_builtins(report.layers),
        },
        "lock": report.lock,
        "vertices": [
            {"name": one.name, "cached": one.cached, "seconds": one.seconds, "line": one.line}
            for one in report.vertices
        ],
        "seconds": report.seconds,
        "builder": report.builder,
    }
    try:
        write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    except OSError as error:
        raise DanluError(f"cannot write {path}: {error.strerror}") from error
