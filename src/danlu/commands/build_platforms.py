"""Build the image of a project for several platforms, and export them together."""

from __future__ import annotations

from contextlib import ExitStack

from msgspec.structs import replace

from danlu.commands.build import (
    BuildOptions,
    BuildReport,
    BuildRequest,
    choose_platforms,
    export_images,
    find_or_build,
)
from danlu.commands.image.export import check_index_output, parse_output
from danlu.errors import UsageError
from danlu.sandbox.emulation import is_foreign_image


def build_platforms(request: BuildRequest) -> BuildReport:
    """Build an image for each platform of the options; the report is of this machine's.

    Raises :class:`UsageError` for an output that cannot hold several platforms.
    """
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
    for output in options.outputs:
        check_index_output(parse_output(output))
    if not options.tags and not options.outputs:
        raise UsageError(
            "images for several platforms need a name or an output",
            hint="add -t NAME or -o type=oci,dest=DIR",
        )
