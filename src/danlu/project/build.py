"""Find or build the image of a project, then tag, export and push it.

Whether there is anything to build is decided here, with few imports, because every build and every
``danlu run`` waits for it. The builder (:mod:`danlu.project.build_image`) is imported only if
something has to be built.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from danlu.errors import DanluError, UsageError
from danlu.oci.digest import sha256
from danlu.project import build_cache
from danlu.project.build_request import (
    BuildOptions,
    BuildOutcome,
    BuildReport,
    BuildRequest,
    LayerReport,
    StepReport,
    choose_platforms,
)
from danlu.store import Store
from danlu.util.files import is_special_file, write_atomic

# Values of these types come from modules that a build without changes does not load.
if TYPE_CHECKING:
    from danlu.builder.embedded.context import VertexReport
    from danlu.engine.settings import Settings
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.graph.progress import Progress
    from danlu.project.project import Project
    from danlu.store import Layer, StoredImage

#: The builders by name; they differ in where commands run (docs/architecture/buildkit.md).
_BUILDERS = ("embedded", "buildkit", "kubernetes")


def build_project(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Build the project's image, then tag, export and push it as ``options`` say.

    Raises :class:`~danlu.errors.DanluError`. Nothing is left half-done then: the lock is replaced
    atomically, and names only ever move to finished images.
    """
    if options.outputs or options.push:
        # Where the image goes, the project is not mounted.
        project = dataclasses.replace(project, portable=True)
    request = BuildRequest(project, settings, options, progress)
    if "," in options.platform:
        return _build_platforms(request)
    with find_or_build(request) as (store, outcome):
        return export_images(request, store, (outcome,))


def _build_platforms(request: BuildRequest) -> BuildReport:
    """Build an image for each platform of the options; the report is of this machine's."""
    from danlu.sandbox.emulation import is_foreign_image  # most builds have one platform

    platforms = choose_platforms(request.options.platform)
    if len(platforms) > 1:
        _check_outputs(request.options)
    with ExitStack() as stack:
        built = []
        for platform in platforms:
            # Without tags: a name moves only when the images of all platforms are built.
            options = replace(request.options, platform=str(platform), tags=())
            store, outcome = stack.enter_context(find_or_build(replace(request, options=options)))
            built.append(outcome)
        built.sort(key=lambda outcome: is_foreign_image(outcome.image.config))
        return export_images(request, store, built)


def _check_outputs(options: BuildOptions) -> None:
    """Raise :class:`UsageError` for an output that cannot hold several platforms."""
    from danlu.image.export import check_index_output, parse_output

    for output in options.outputs:
        check_index_output(parse_output(output))
    if not options.tags and not options.outputs:
        raise UsageError(
            "images for several platforms need a name or an output",
            hint="add -t NAME or -o type=oci,dest=DIR",
        )


def find_or_build_image(
    project: Project, *, settings: Settings, options: BuildOptions, progress: Progress
) -> StoredImage:
    """Return the project's image; build it if needed."""
    request = BuildRequest(project, settings, options, progress)
    return find_or_build_environment(request)[0]


def find_or_build_environment(request: BuildRequest) -> tuple[StoredImage, RuntimeSettings]:
    """Return the project's image, which is built if needed, and how it is started."""
    with find_or_build(request) as (_, outcome):
        return outcome.image, outcome.runtime


@contextmanager
def find_or_build(request: BuildRequest) -> Iterator[tuple[Store, BuildOutcome]]:
    """Yield the open store and the project's image, which is built unless it exists.

    A new image is protected from garbage collection until the block ends.
    """
    project, options, paths = request.project, request.options, request.settings.paths
    _check_builder(request)
    if options.outputs or options.push:
        from danlu.sandbox import userns  # most builds export nothing

        # Layers keep the owners of their files, which only root of our user namespace can read.
        userns.enter(paths)
    with Store.open(paths.store) as store:
        # 1. No file has changed since an earlier build: nothing is evaluated.
        if not options.ignores_cache and not options.platform:
            epoch = store.epoch()
            found = build_cache.lookup_environment(store, project)
            if found is not None:
                depends_on = _list_dependencies(request, store, found[0])
                outcome = BuildOutcome(*found, unchanged=True, depends_on=depends_on, epoch=epoch)
                yield store, outcome
                return
        # 2. Lock what is not locked, and run what no record of the store answers for.
        environment = project.environment(offline=options.offline, while_waiting=_import_builder)
        from danlu.project import build_image

        with build_image.build_environment(request, environment, store) as outcome:
            yield store, outcome


def _check_builder(request: BuildRequest) -> None:
    """Raise :class:`UsageError` for an unknown builder, or options that it does not have."""
    builder, options = request.builder, request.options
    if builder == "docker":
        raise UsageError(
            "the BuildKit inside Docker Engine cannot run steps: it has no oci-layout:// sources",
            hint="use --builder buildkit with a separate BuildKit, for example (not tested):"
            " `docker buildx create --name danlu --driver docker-container --bootstrap` and"
            " BUILDKIT_HOST=docker-container://buildx_buildkit_danlu0",
        )
    if builder not in _BUILDERS:
        raise UsageError(f"unknown builder {builder!r}", hint=f"use {', '.join(_BUILDERS)}")
    if builder != "embedded" and options.debug:
        raise UsageError(
            "BuildKit cannot open a shell in a failed step",
            hint="use --debug with --builder embedded",
        )
    if builder == "embedded" and (options.cache_from or options.cache_to):
        raise UsageError(
            "--cache-from and --cache-to are caches of BuildKit", hint="add --builder buildkit"
        )


def _import_builder() -> None:
    """Import the builder while a child process evaluates the build file."""
    import danlu.project.build_image  # noqa: F401


def _list_dependencies(request: BuildRequest, store: Store, image: StoredImage) -> tuple[Path, ...]:
    """List what an unchanged build was recognised by; empty if that is not only files."""
    files = build_cache.list_dependencies(store, request.project)
    layers = store.layers(image.layers)
    if files is None or layers is None:
        return ()
    return (
        *(request.project.directory / file for file in files),
        request.settings.paths.config_file,
        *(layer.tree for layer in layers),
    )


# -- export and report


def export_images(
    request: BuildRequest, store: Store, outcomes: Sequence[BuildOutcome]
) -> BuildReport:
    """Tag, export and push the images, one for each platform, and report the build.

    The report is of the first one.
    """
    options = request.options
    if options.bytecode:
        from danlu.project.bytecode import add_bytecode  # few builds include it

        outcomes = [
            replace(built, image=add_bytecode(store, built.image, request.settings))
            for built in outcomes
        ]
    outcome, *others = outcomes
    image = outcome.image
    if others or not set(options.tags) <= set(image.names):
        from danlu.image.platforms import tag_platforms  # an unchanged build tags nothing

        for name in options.tags:
            tag_platforms(store, name, [built.image for built in outcomes])
    manifest, destinations = _write_outputs(
        request, store, image, [other.image for other in others]
    )
    layers = [layer for layer in map(store.layer, image.layers) if layer is not None]
    # Docker before version 23 cannot read zstd, and a registry serves any client.
    compression = options.compression or ("gzip" if options.push else "zstd")
    report = BuildReport(
        digest=manifest,
        config=image.digest,
        layers=tuple(_describe_layer(store, layer, compression) for layer in layers),
        size=sum(layer.size for layer in layers),
        lock=sha256(request.project.lock_text.encode()),
        vertices=tuple(_describe_step(step) for built in outcomes for step in built.vertices),
        seconds=time.monotonic() - request.started,
        builder=request.builder,
        names=options.tags,
        lock_changes=tuple(line for built in outcomes for line in built.lock_changes),
        unchanged=all(built.unchanged for built in outcomes),
        outputs=destinations,
        depends_on=outcome.depends_on,
        epoch=outcome.epoch,
        note=_describe_bytecode(store, image) if destinations else "",
    )
    if options.metadata_file:
        write_metadata(report, options.metadata_file)
    return report


def _write_outputs(
    request: BuildRequest, store: Store, image: StoredImage, others: Sequence[StoredImage]
) -> tuple[str, tuple[str, ...]]:
    """Export and push the image; return the last manifest's digest and the destinations.

    ``others`` are the same image for other platforms.
    """
    options = request.options
    if not options.outputs and not options.push:
        return "", ()
    from danlu.image.export import push_names, write_output  # loads registries, archives

    manifest, destinations = "", []
    for output in options.outputs:
        manifest, destination = write_output(
            store,
            image,
            output,
            names=options.tags,
            compression=options.compression or "zstd",
            others=others,
        )
        destinations.append(destination)
    if options.push:
        if not options.tags:
            raise UsageError("--push needs a name", hint="add -t REGISTRY/NAME:TAG")
        manifest = push_names(
            store,
            image,
            options.tags,
            settings=request.settings,
            compression=options.compression or "gzip",
            progress=request.progress,
            others=others,
        )
        destinations.extend(options.tags)
    return manifest, tuple(destinations)


def _describe_bytecode(store: Store, image: StoredImage) -> str:
    from danlu.project.bytecode import BYTECODE_NOTE, lacks_bytecode

    return BYTECODE_NOTE if lacks_bytecode(store, image) else ""


def _describe_layer(store: Store, layer: Layer, compression: str) -> LayerReport:
    blob = store.compressed_blob(layer.diff_id, compression)
    return LayerReport(blob.digest if blob else "", layer.diff_id, layer.size, layer.created_by)


def _describe_step(vertex: VertexReport) -> StepReport:
    line = str(vertex.spans[0]) if vertex.spans else ""
    return StepReport(vertex.name, vertex.cached, vertex.seconds, line, vertex.digest, vertex.size)


def build_metadata(report: BuildReport) -> dict[str, Any]:
    """Return the report as ``--metadata-file`` contains it."""
    return {
        "image": {
            "digest": report.digest,
            "config": report.config,
            "size": report.size,
            "layers": msgspec.to_builtins(report.layers),
        },
        "lock": report.lock,
        "vertices": [
            {
                "name": vertex.name,
                "cached": vertex.cached,
                "seconds": vertex.seconds,
                "line": vertex.line,
            }
            for vertex in report.vertices
        ],
        "seconds": report.seconds,
        "builder": report.builder,
    }


def write_metadata(report: BuildReport, path: Path) -> None:
    """Write :func:`build_metadata` to ``path``, atomically unless that is a pipe or device.

    Raises :class:`DanluError` if the file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(build_metadata(report)), indent=2) + b"\n"
    try:
        if is_special_file(path):
            path.write_bytes(text)
        else:
            write_atomic(path, text)
    except OSError as error:
        raise DanluError(f"cannot write {path}: {error.strerror}") from error
