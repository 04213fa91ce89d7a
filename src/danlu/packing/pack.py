"""Pack a model: its files, its predictor, and the least of the training environment it needs.

The predictor runs on example inputs in the training environment, which shows the packages that it
uses. The image is built from the same lock with only those, and the same inputs must give the same
outputs in it.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from danlu.builder.embedded import build as embedded
from danlu.builder.embedded.context import SolveRequest
from danlu.environment.image_layout import make_scheme
from danlu.errors import DifferenceFound, StepFailed, UsageError
from danlu.graph.ops import CopyContext
from danlu.graph.progress import Message
from danlu.graph.types import Graph, Vertex
from danlu.image.manage import normalize_name
from danlu.oci.digest import sha256
from danlu.packing.packed_runs import explain_failure, read_file, run_predictor
from danlu.project.build import find_or_build
from danlu.project.build_image import make_build_plan, make_lock_request
from danlu.project.build_request import BuildOptions, BuildRequest, choose_platform
from danlu.project.local_modules import classify_search_path, find_local_modules
from danlu.resolve.python.request import collect_indexes
from danlu.sandbox import userns
from danlu.sandbox.launcher.image_root import find_layers
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount
from danlu.serving import layout, predictor_values, runner
from danlu.serving.golden import DEFAULT_TOLERANCE, OutputComparison, compare_outputs
from danlu.serving.model_directory import ModelDirectory, read_model_directory
from danlu.serving.model_servers import (
    COMMAND,
    DANLU,
    ModelServer,
    choose_server,
    list_server_packages,
)
from danlu.serving.predictors.registry import choose_predictor
from danlu.serving.reduction import ReducedEnvironment, reduce_environment
from danlu.serving.report import (
    GoldenExample,
    GoldenRecording,
    PackedPackage,
    PackOrigin,
    RunReport,
)
from danlu.serving.server_files import write_adapter, write_server
from danlu.sources.build_context import digest_path
from danlu.sources.file_digests import FileDigests
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv import Uv

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.environment.lock import FunctionLock
    from danlu.environment.types import Environment
    from danlu.graph.image_config import ImageConfig
    from danlu.graph.progress import Progress
    from danlu.oci.digest import DiffId
    from danlu.project.build_image import BuildPlan
    from danlu.project.lock import LockRequest
    from danlu.project.project import Project
    from danlu.store import Layer, Store, StoredImage

_MAX_STATUS_BYTES = 64 << 20
_EXAMPLE_SUFFIXES = (".json", ".jsonl", ".npy", ".npz")


class PackOptions(msgspec.Struct, frozen=True):
    """The options of ``danlu pack``.

    ``predictor`` is ``FILE:CLASS`` or ``MODULE:CLASS``, the name of a ready-made one, or empty to
    choose by the model's files; ``network`` is ``FILE:FUNCTION`` for weights of PyTorch. ``server``
    is the name of a model server or a command line, or empty for none; ``grpc`` adds it to danlu's.
    Paths are absolute.
    """

    model: Path
    tag: str
    directory: Path
    predictor: str = ""
    network: str = ""
    examples: tuple[Path, ...] = ()
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    tolerance: float = DEFAULT_TOLERANCE
    server: str = DANLU.name
    grpc: bool = False
    frozen: bool = False
    offline: bool = False


class PackResult(msgspec.Struct, frozen=True):
    """A packed image.

    Sizes are bytes of uncompressed layers. ``dropped`` are packages of the training environment
    that the image does not have. ``shared_layers`` of ``layers`` are layers of the training image.
    """

    image: str
    name: str
    size: int
    training_size: int
    model_size: int
    predictor: str
    packages: tuple[str, ...]
    dropped: tuple[str, ...]
    dropped_system: tuple[str, ...]
    layers: int
    shared_layers: int
    examples: int
    comparison: OutputComparison
    notes: tuple[str, ...] = ()


class _PredictorFiles(msgspec.Struct, frozen=True):
    """What is copied to the image for a predictor; ``about`` is ``predictor.json``."""

    about: Mapping[str, object]
    files: Mapping[str, Path]
    description: str
    notes: tuple[str, ...] = ()


def pack_model(
    project: Project, options: PackOptions, *, settings: Settings, progress: Progress
) -> PackResult:
    """Build the image of a model, check it, and name it ``options.tag``.

    ``project`` is the training environment, which is built if needed. Raises
    :class:`~danlu.errors.DanluError`; the name moves only to an image that passed the check.
    """
    name = normalize_name(options.tag)
    model = read_model_directory(options.model)
    predictor = _collect_predictor(options, model, project)
    examples = tuple(map(_check_example, options.examples))
    chosen = choose_server(options.server) if options.server else None
    if options.grpc and chosen is not DANLU:
        raise UsageError("--grpc is for danlu's own model server", hint="remove --grpc or --server")
    project = replace(project, portable=True)
    userns.enter(settings.paths)
    environment = project.environment(offline=options.offline)
    build = BuildRequest(
        project, settings, BuildOptions(offline=options.offline, frozen=options.frozen), progress
    )
    with find_or_build(build) as (store, outcome), store.lease(), store.staging() as work:
        training = outcome.image
        lock = project.lock.find(project.target, choose_platform(""))
        if lock is None or lock.python is None:
            raise UsageError(
                "the environment has no Python", hint="add install.python to the build file"
            )
        code = work / "code"
        _write_code(code, predictor)
        interpreter = make_scheme(lock.python).interpreter
        _report_progress(
            progress, "running the predictor in the training environment, without a network"
        )

        def record() -> RunReport:
            return _record_examples(
                store, training, settings, interpreter, code, model, examples, work
            )

        report = record()
        if report.error is not None:
            raise explain_failure(report.error, where="the training environment")
        _require_repeatable(compare_outputs(report.outputs, report.again))
        plan = _PackPlan(build, make_lock_request(build, environment), lock, options)
        needed: tuple[str, ...] = ()
        if chosen is not None:
            locked = [package.name for package in lock.packages]
            needed = list_server_packages(chosen, locked, report.distributions.requires)
        reduction = _plan_reduction(plan, store, training, report, needed)
        origin = _describe_origin(plan, training, reduction)
        _write_recording(work / "record", report, origin, options.tolerance)
        server, notes = _write_server_files(plan, work, chosen, origin, interpreter)
        image = _build_image(plan, store, work, model, reduction, interpreter, server)
        _report_progress(
            progress, "checking the packed image in a fresh container, without a network"
        )
        replay = run_predictor(store, image, settings, (interpreter, layout.PROGRAM, "replay"))
        comparison = _check_replay(replay, report, record, options.tolerance)
        store.tag(name, image.digest)
        return PackResult(
            image=image.digest,
            name=name,
            size=_measure_layers(find_layers(store, image)),
            training_size=_measure_layers(find_layers(store, training)),
            model_size=model.size,
            predictor=predictor.description,
            packages=tuple(f"{item.name}=={item.version}" for item in origin.packages),
            dropped=reduction.dropped,
            dropped_system=reduction.dropped_system,
            layers=len(image.layers),
            shared_layers=len(set(image.layers) & set(training.layers)),
            examples=len(report.inputs),
            comparison=comparison,
            notes=(*predictor.notes, *notes),
        )


def _write_server_files(
    plan: _PackPlan,
    work: Path,
    chosen: ModelServer | None,
    origin: PackOrigin,
    interpreter: str,
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Write the files of a model server; return where they go, and what to say about it."""
    if chosen is None:
        return [], ()
    if chosen is not DANLU:
        command = plan.options.server if chosen is COMMAND else ""
        return write_adapter(work, chosen, interpreter, command), ()
    if all(package.name != "numpy" for package in origin.packages):
        return [], ("note: without the model server, which needs NumPy (--keep numpy)",)
    return _write_server(plan, work, interpreter), ()


def _check_replay(
    replay: RunReport, report: RunReport, record: Callable[[], RunReport], tolerance: float
) -> OutputComparison:
    """Return how the packed image's outputs compare; raise if they are not those of training.

    ``record`` runs the training environment once more, because a model that differs from run to run
    is another error.
    """
    if replay.error is not None:
        known = report.distributions.modules
        raise explain_failure(replay.error, where="the packed image", known=known)
    comparison = compare_outputs(report.outputs, replay.outputs, tolerance=tolerance)
    if not comparison.is_equal:
        _require_repeatable(compare_outputs(report.outputs, record().outputs, tolerance=tolerance))
        raise DifferenceFound(
            "the packed image gives other outputs than the training environment",
            details=tuple(map(str, comparison.differences)),
            hint="keep a package that changes the result: --keep NAME",
        )
    return comparison


class _PackPlan(msgspec.Struct, frozen=True):
    """What every phase of packing needs."""

    build: BuildRequest
    lock_request: LockRequest
    lock: FunctionLock
    options: PackOptions

    def plan_build(self, environment: Environment, lock: FunctionLock) -> BuildPlan:
        """Return the plan of a build with a part of the environment and its lock."""
        return make_build_plan(self.build, self.lock_request, instead=(environment, lock))


class _SolvedGraph(msgspec.Struct, frozen=True):
    """The layers of a graph with what made each, lowest first, and what a base image sets."""

    layers: tuple[tuple[DiffId, str], ...]
    inherited: ImageConfig


def _report_progress(progress: Progress, text: str) -> None:
    progress(Message(text, 0.0))


def _measure_layers(layers: Sequence[Layer]) -> int:
    return sum(layer.size for layer in layers)


def _require_repeatable(comparison: OutputComparison) -> None:
    if not comparison.is_equal:
        raise StepFailed(
            "the predictor gives different outputs for the same input: they depend on time or"
            " randomness",
            code=1,
            details=tuple(
                f"{item.place or 'output'}: {item.recorded} first, {item.found} then"
                for item in comparison.differences
            ),
            hint="set seeds in `load` and `predict`, or leave the output out of the result",
        )


# -- the predictor's files ------------------------------------------------------------------------


def _collect_predictor(
    options: PackOptions, model: ModelDirectory, project: Project
) -> _PredictorFiles:
    """Return the files of the predictor that the options name."""
    if ":" in options.predictor:
        module, name, files = find_named_modules(
            options.predictor, "--predictor", options.directory, project.directory
        )
        return _PredictorFiles({"module": module, "class": name}, files, options.predictor)
    ready = choose_predictor(options.predictor, model)
    about: dict[str, object] = {"module": "danlu_predictor", "class": ready.class_name}
    found: dict[str, Path] = {}
    if options.network:
        module, name, files = find_named_modules(
            options.network, "--network", options.directory, project.directory
        )
        about["options"] = {"module": module, "name": name}
        found.update(files)
    found["danlu_predictor.py"] = ready.source
    notes = tuple(
        f"note: {name} is a program: loading it executes what its author wrote"
        for name in ready.find_code(model)
    )
    return _PredictorFiles(about, found, ready.name, notes)


def find_named_modules(
    text: str, option: str, directory: Path, project: Path
) -> tuple[str, str, Mapping[str, Path]]:
    """Return module, name and files of ``FILE:NAME`` with the local modules that it imports.

    ``package.module:NAME`` is as for ``python -m``: the module may have relative imports. Both are
    relative to ``directory``. Raises :class:`UsageError`.
    """
    file, _, name = text.rpartition(":")
    module, place = file, directory
    if file.endswith(".py"):
        path = directory / file
        module, place = path.stem, path.parent
        if not path.is_file():
            raise UsageError(f"{option}: {file} not found in {directory}")
        if _has_relative_import(path):
            dotted = file.removesuffix(".py").removeprefix("./").replace("/", ".")
            raise UsageError(
                f"{option}: {file} has relative imports, which need its package",
                hint=f"name it as a module: {dotted}:{name}",
            )
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"invalid {option} {text!r}", hint="use FILE.py:NAME or MODULE:NAME")
    places = classify_search_path([str(place), str(project)], place=directory, elsewhere=True)
    modules = find_local_modules((), places, needed=(module,), elsewhere=True)
    return module, name, modules.files


def _has_relative_import(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False  # the training environment reports it, with the line
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))


def _write_code(place: Path, predictor: _PredictorFiles) -> None:
    """Write what the image has below :data:`layout.ROOT`, but for the model and the recording."""
    for relative, source in predictor.files.items():
        target = place / "code" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    # So that the runner can read them from the mount: what is not in the image is empty there.
    (place / "model").mkdir()
    (place / "examples").mkdir()
    shutil.copyfile(runner.__file__, place / "run.py")
    shutil.copy(predictor_values.__file__, place)
    (place / "predictor.json").write_text(json.dumps(predictor.about, indent=2) + "\n")


def _check_example(path: Path) -> Path:
    if path.suffix not in _EXAMPLE_SUFFIXES:
        raise UsageError(
            f"invalid example file {path.name}", hint=f"use {', '.join(_EXAMPLE_SUFFIXES)}"
        )
    if not path.is_file():
        raise UsageError(f"example file {path} not found")
    return path


def _record_examples(
    store: Store,
    image: StoredImage,
    settings: Settings,
    interpreter: str,
    code: Path,
    model: ModelDirectory,
    examples: Sequence[Path],
    work: Path,
) -> RunReport:
    """Run the predictor on its examples in the training environment."""
    inside = [
        Mount(f"{layout.ROOT}/examples/{number:04}-{path.name}", path, readonly=True)
        for number, path in enumerate(examples)
    ]
    mounts = [Mount(layout.ROOT, code, readonly=True)]
    for mount in inside:
        (code / "examples" / mount.target.rpartition("/")[2]).touch()
    if model.is_file:
        # The directory of a single model file may have much else.
        (code / "model" / model.files[0].path).touch()
        file = model.files[0].path
        mounts.append(Mount(f"{layout.MODEL}/{file}", model.path / file, readonly=True))
    else:
        mounts.append(Mount(layout.MODEL, model.path, readonly=True))
    return run_predictor(
        store, image, settings, (interpreter, layout.PROGRAM, "record"), [*mounts, *inside]
    )


# -- the reduced environment ----------------------------------------------------------------------


def _plan_reduction(
    plan: _PackPlan,
    store: Store,
    training: StoredImage,
    report: RunReport,
    needed: Sequence[str],
) -> ReducedEnvironment:
    status = read_file(store, training, "/var/lib/dpkg/status", _MAX_STATUS_BYTES) or b""
    return reduce_environment(
        plan.lock_request.environment,
        plan.lock,
        report,
        dpkg_status=status.decode(errors="replace"),
        uses_steps=bool(plan.lock_request.environment.steps)
        and _uses_steps(plan, store, training, report),
        keep=(*plan.options.keep, *needed),
        drop=plan.options.drop,
    )


def _uses_steps(plan: _PackPlan, store: Store, training: StoredImage, report: RunReport) -> bool:
    """Return whether the predictor used files of layers that steps made."""
    declared = msgspec.structs.replace(plan.lock_request.environment, steps=())
    planned = plan.plan_build(declared, plan.lock)
    solved = _solve_graph(plan, store, planned.graph, planned.request)
    below = {diff_id for diff_id, _ in solved.layers}
    layers = find_layers(store, training)
    steps = [str(layer.tree) for layer in layers if layer.diff_id not in below]
    view = LayerView([layer.tree for layer in layers])
    entries = (view.entry(view.resolve(path)) or "" for path in report.files)
    return any(entry.startswith(f"{tree}/") for entry in entries for tree in steps)


def _solve_graph(
    plan: _PackPlan, store: Store, graph: Graph, request: SolveRequest
) -> _SolvedGraph:
    settings = plan.build.settings
    result, reports = anyio.run(
        partial(
            embedded.solve_graph,
            graph,
            request,
            store=store,
            paths=settings.paths,
            config=settings.config,
            progress=plan.build.progress,
        )
    )
    made_by = embedded.find_layer_creators(graph, reports)
    layers = tuple((layer.diff_id, made_by.get(layer.diff_id, "")) for layer in result.stack)
    return _SolvedGraph(layers, result.inherited)


def _describe_origin(
    plan: _PackPlan, training: StoredImage, reduction: ReducedEnvironment
) -> PackOrigin:
    system = reduction.lock.system
    return PackOrigin(
        lock=sha256(plan.build.project.lock_text.encode()),
        training=training.digest,
        layers=tuple(training.layers),
        packages=tuple(
            PackedPackage(item.name, item.version, item.sha256) for item in reduction.lock.packages
        ),
        dropped=reduction.dropped,
        system=tuple(f"{item.name}={item.version}" for item in system.packages) if system else (),
    )


def _write_recording(place: Path, report: RunReport, origin: PackOrigin, tolerance: float) -> None:
    examples = tuple(map(GoldenExample, report.inputs, report.outputs))
    recording = GoldenRecording(examples, tolerance, report.schema)
    place.mkdir()
    for name, value in ((layout.GOLDEN, recording), (layout.ORIGIN, origin)):
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        (place / name.rpartition("/")[2]).write_bytes(data + b"\n")


# -- the image ------------------------------------------------------------------------------------


def _build_image(
    plan: _PackPlan,
    store: Store,
    work: Path,
    model: ModelDirectory,
    reduction: ReducedEnvironment,
    interpreter: str,
    server: Sequence[tuple[str, str]],
) -> StoredImage:
    """Build the image: the reduced environment, the server, the model's layers, the recording."""
    planned = plan.plan_build(reduction.environment, reduction.lock)
    graph = planned.graph
    _report_progress(plan.build.progress, "building the packed image")
    solved = _solve_graph(plan, store, graph, planned.request)
    layers = list(solved.layers)
    digests = FileDigests.of_project(model.path, plan.build.settings.paths.cache)
    parts = [(work, source, target) for source, target in server]
    for place, source, target in (*parts, *_list_parts(model, work)):
        copy = CopyContext(
            source=source,
            target=target,
            digest=digest_path(place, source, digests if place == model.path else None),
            uid=0,
            gid=0,
            epoch=graph.epoch,
        )
        vertex = Vertex(copy, (), name=f"copy to {target}", branch="model")
        files = replace(graph, root=vertex)
        layers += _solve_graph(plan, store, files, SolveRequest(place, offline=True)).layers
    digests.save()
    config = msgspec.structs.replace(
        graph.config,
        entrypoint=(),
        command=(interpreter, layout.PROGRAM),
        environment=(*graph.config.environment, *_name_model(plan.options.tag)),
        labels=(
            *graph.config.labels,
            (layout.LABEL, layout.LAYOUT_VERSION),
            *(((layout.SERVER_LABEL, choose_server(plan.options.server).name),) if server else ()),
        ),
    )
    inherited = msgspec.structs.replace(solved.inherited, entrypoint=(), command=())
    data = embedded.make_image_config(replace(graph, config=config), layers, inherited)
    return store.put_image(
        data, [diff_id for diff_id, _ in layers], metadata=dict(planned.request.metadata)
    )


def _name_model(tag: str) -> tuple[tuple[str, str], ...]:
    """Return the variables from which the server has the model's name and version."""
    name, _, version = tag.rpartition("/")[2].partition(":")
    return (("MODEL_NAME", name), ("MODEL_VERSION", version or "1"))


def _write_server(plan: _PackPlan, work: Path, interpreter: str) -> list[tuple[str, str]]:
    build, lock = plan.build, plan.lock
    assert lock.python is not None
    architecture = lock.platform.split("/")[1]
    target = PlatformTarget(lock.python.version, lock.base.libc, architecture)
    indexes = collect_indexes(
        plan.lock_request.environment, build.project.directory, build.settings.config
    )
    uv = Uv(
        build.settings.paths.cache / "uv",
        build.project.directory,
        indexes,
        offline=plan.options.offline,
    )
    return write_server(work, target, interpreter, uv, grpc=plan.options.grpc)


def _list_parts(model: ModelDirectory, work: Path) -> Sequence[tuple[Path, str, str]]:
    """Return directory, source and target of each layer over the environment's.

    Large files of the model are separate layers, copied from where they are; the small ones are
    one.
    """
    parts = [(model.path, name, f"{layout.MODEL}/{name}") for name in model.large]
    small = [file.path for file in model.files if file.path not in model.large]
    for name in small:
        target = work / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path / name, target, follow_symlinks=False)
    for directory in (work / "code" / "model", work / "code" / "examples"):
        shutil.rmtree(directory)  # they were mount points
    if small:
        parts.append((work / "small", ".", layout.MODEL))
    return [*parts, (work / "code", ".", layout.ROOT), (work / "record", ".", layout.ROOT)]
