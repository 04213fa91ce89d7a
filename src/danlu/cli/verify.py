"""``danlu verify``."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.errors import DifferenceFound
from danlu.packing.verify import VerifyReport, verify_image
from danlu.util.human import pluralize, shorten_digest
from danlu.util.sanitize import escape_unprintable

_MAX_LENGTH = 1000


@declare_command("verify")
@click.argument("image", metavar="REF")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="OutputDifference of numbers to accept [default: as when it was packed].",
)
@format_option()
@verbosity_options
def command(image: str, tolerance: float | None, form: str) -> None:
    """Replay the recorded inputs of a packed model.

    Runs the predictor in a fresh container without a network, and compares outputs and versions
    with those of the training environment. Exits with 1 if any differs.
    """
    run = current_session()
    report = verify_image(image, settings=run.settings, tolerance=tolerance)
    if form == "json":
        print_json(msgspec.to_builtins(report), run.terminal)
    else:
        for line in _describe_report(report):
            run.terminal.write_stdout(escape_unprintable(line, limit=_MAX_LENGTH))
    if not report.is_equal:
        details = (*map(str, report.comparison.differences), *report.other_packages)
        raise DifferenceFound(
            f"{image} differs from its training environment",
            details=tuple(escape_unprintable(line, limit=_MAX_LENGTH) for line in details),
        )
    run.terminal.info(f"{image} is proved equal to the training environment")


def _describe_report(report: VerifyReport) -> Iterator[str]:
    comparison = report.comparison
    place = f" at {comparison.place}" if comparison.place else ""
    yield (
        f"{pluralize(report.examples, 'example')}: {pluralize(comparison.values, 'value')}"
        f" compared, largest difference {comparison.largest:g}{place}"
        f" (tolerance {report.tolerance:g})"
    )
    count = len(report.packages) + len(report.other_packages)
    yield (
        f"{len(report.packages)} of {pluralize(count, 'package')} have the version of the training"
        f" lock {shorten_digest(report.lock)}: {', '.join(report.packages)}"
    )
    yield f"{report.shared_layers} of {report.layers} layers are the training image's"
