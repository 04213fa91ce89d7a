"""Verify a packed image: replay its recorded inputs in a fresh container without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from danlu.errors import UsageError
from danlu.image.manage import find_image, parse_image_config
from danlu.packing.packed_runs import explain_failure, read_file, run_predictor
from danlu.sandbox import userns
from danlu.serving import layout
from danlu.serving.golden import OutputComparison, compare_outputs
from danlu.serving.report import MAX_BYTES, GoldenRecording, PackOrigin, decode_json
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings


class VerifyReport(msgspec.Struct, frozen=True):
    """How a packed image compares with what was recorded when it was packed.

    ``packages`` are its Python packages (``NAME==VERSION``) that have the version of the training
    lock, whose digest is ``lock``; ``other_packages`` those that differ, with both versions.
    ``shared_layers`` of ``layers`` are layers of the training image.
    """

    image: str
    examples: int
    comparison: OutputComparison
    tolerance: float
    packages: tuple[str, ...]
    other_packages: tuple[str, ...]
    lock: str
    layers: int
    shared_layers: int

    @property
    def is_equal(self) -> bool:
        """Whether outputs and versions are those of the training environment."""
        return self.comparison.is_equal and not self.other_packages


def verify_image(name: str, *, settings: Settings, tolerance: float | None = None) -> VerifyReport:
    """Replay the recorded inputs of an image of the local store.

    ``tolerance`` replaces the recorded one. Raises :class:`UsageError` if the image is not a packed
    model, :class:`StepFailed` if its predictor fails.
    """
    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store, store.lease():
        image = find_image(store, name)
        config = parse_image_config(image).config
        command = (config and config.cmd) or ()
        golden = read_file(store, image, layout.GOLDEN, MAX_BYTES + 1)
        source = read_file(store, image, layout.ORIGIN, MAX_BYTES + 1)
        if not command or golden is None or source is None:
            raise UsageError(
                f"{name} is not a packed model", hint="`danlu pack` makes images to verify"
            )
        recording = decode_json(golden, GoldenRecording, "the recording in the image")
        origin = decode_json(source, PackOrigin, "the origin in the image")
        report = run_predictor(store, image, settings, (*command, "replay"))
        if report.error is not None:
            raise explain_failure(report.error, where="the image", known={})
        limit = recording.tolerance if tolerance is None else tolerance
        outputs = [example.output for example in recording.examples]
        comparison = compare_outputs(outputs, report.outputs, tolerance=limit)
        installed = report.distributions.installed
        same = [item for item in origin.packages if installed.get(item.name) == item.version]
        other = [item for item in origin.packages if item not in same]
        return VerifyReport(
            image=image.digest,
            examples=len(outputs),
            comparison=comparison,
            tolerance=limit,
            packages=tuple(f"{item.name}=={item.version}" for item in same),
            other_packages=tuple(
                f"{item.name}: {item.version} when packed,"
                f" {installed.get(item.name, 'missing')} now"
                for item in other
            ),
            lock=origin.lock,
            layers=len(image.layers),
            shared_layers=len(set(image.layers) & set(origin.layers)),
        )
