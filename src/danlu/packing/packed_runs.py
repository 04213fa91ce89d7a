"""Run a predictor in a fresh container without a network, and explain why one failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from danlu.errors import DanluError, StepFailed
from danlu.graph.image_config import parse_image_config
from danlu.sandbox.launcher.image_root import find_layers, image_process
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import Mount, RootFilesystem
from danlu.serving.report import PredictorError, RunReport, read_report
from danlu.util.files import read_regular_file
from danlu.util.sanitize import escape_unprintable

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.store import Store, StoredImage

_OUTPUT = "/run/danlu-predictor"
_MAX_LINES = 40
_MAX_LINE = 500


def run_predictor(
    store: Store,
    image: StoredImage,
    settings: Settings,
    command: Sequence[str],
    mounts: Sequence[Mount] = (),
) -> RunReport:
    """Run ``command`` (the runner and its mode) in a fresh container, and return its report.

    The container has no network, and what it writes is discarded. Requires
    :func:`danlu.sandbox.userns.enter`. Raises :class:`OutsideError` for a missing or invalid
    report, with the last lines of the output.
    """
    layers = tuple(layer.tree for layer in find_layers(store, image))
    process = image_process(
        LayerView(layers), parse_image_config(image.config), (*command, _OUTPUT), environment={}
    )
    lines: deque[str] = deque(maxlen=_MAX_LINES)
    with store.staging() as work:
        output = work / "output"
        output.mkdir()
        output.chmod(0o777)  # the image's user may be any
        sandbox = Sandbox(work, name=settings.config.runtime, seccomp=settings.config.seccomp)
        code = anyio.run(
            partial(
                sandbox.run,
                process,
                RootFilesystem(layers),
                mounts=[*mounts, Mount(_OUTPUT, output)],
                network=False,
                on_line=lines.append,
            )
        )
        try:
            return read_report(output)
        except DanluError as error:
            error.details = tuple(escape_unprintable(line, limit=_MAX_LINE) for line in lines)
            error.message += f" (exit code {code})"
            raise


def read_file(store: Store, image: StoredImage, path: str, limit: int) -> bytes | None:
    """Return up to ``limit`` bytes of a file of an image, or None."""
    view = LayerView([layer.tree for layer in find_layers(store, image)])
    entry = view.entry(view.resolve(path))
    return read_regular_file(Path(entry), limit) if entry else None


def explain_failure(
    error: PredictorError, *, where: str, known: Mapping[str, tuple[str, ...]] | None = None
) -> DanluError:
    """Return the exception for a predictor that failed ``where``.

    ``known`` are the modules of the training environment with their distributions: given for the
    packed image, where something that tracing did not see may be missing.
    """
    details = tuple(
        escape_unprintable(line, limit=_MAX_LINE) for line in error.traceback.splitlines()
    )[-_MAX_LINES:]
    name = escape_unprintable(error.name)
    message = escape_unprintable(error.message, limit=_MAX_LINE)
    hint = ""
    match error.kind:
        case "input":
            what = message.partition(": ")[2] or message
            if what == "no example input":
                hint = "add --example FILE (JSON, .npy, .npz), or `example` to the class"
            return StepFailed(f"the predictor's input: {what}", code=1, hint=hint)
        case "network":
            hosts = ", ".join(map(escape_unprintable, error.hosts))
            what = f"needs the network ({hosts})" if hosts else "needs the network"
            hint = "put what it downloads into the model directory: packed models run without one"
        case "module" | "distribution":
            what = f"needs {error.kind} {name}, which is not in {where}"
            owners = (known or {}).get(error.name.partition(".")[0]) or (
                (error.name,) if known is not None and error.kind == "distribution" else ()
            )
            if owners:
                hint = f"keep it in the packed image: --keep {escape_unprintable(owners[0])}"
            else:
                hint = "add it to the build file, or next to the predictor's file"
        case "pickle":
            what = f"cannot load the pickle: {message}"
            hint = (
                "a pickle needs the modules and classes that it was written with; save the model"
                " in a format without code (skops, safetensors, ONNX)"
            )
        case _:
            what = f"failed in {error.phase}: {message}"
    return StepFailed(f"the predictor {what}", code=1, hint=hint, details=details)
