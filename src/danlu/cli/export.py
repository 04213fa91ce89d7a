"""``danlu export``: files of other tools that describe the same environment."""

from __future__ import annotations

import click

from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import group
from danlu.cli.options import file_option, progress_option, verbosity_options
from danlu.cli.session import current_session
from danlu.convert.devcontainer_export import (
    DOCKERFILE_DIRECTORY,
    describe_devcontainer,
    find_export_path,
    write_export,
)
from danlu.image.manage import normalize_name
from danlu.project.build import build_project
from danlu.project.build_request import BuildOptions
from danlu.util.sanitize import strip_control_sequences

command = group("export", help="Export the environment for other tools.")


@command.subcommand("devcontainer")
@file_option
@click.option("--image", metavar="REF", default="", help="Use the image REF of a registry.")
@click.option("--push", is_flag=True, help="Build the image and push it as REF first.")
@click.option("--force", is_flag=True, help="Overwrite an existing devcontainer.json.")
@progress_option
@verbosity_options
def devcontainer(file: str | None, image: str, push: bool, force: bool, progress: str) -> None:
    """Write .devcontainer/devcontainer.json, for Codespaces and VS Code.

    With --image it names an image of a registry, which --push builds and pushes. Without, the image
    is built, and written to .devcontainer/image as a Dockerfile with an archive of each layer.
    """
    if push and not image:
        raise click.UsageError("--push needs --image REF")
    run = current_session()
    project = run.open_project(file)
    reference = normalize_name(image) if image else ""
    path = find_export_path(project.directory, force=force)
    export = describe_devcontainer(project.environment(), project.directory.name, reference)
    if push or not image:
        place = project.directory / DOCKERFILE_DIRECTORY
        outputs = () if image else (f"type=dockerfile,dest={place}",)
        tags = (reference,) if image else ()
        options = BuildOptions(tags=tags, outputs=outputs, push=push)
        build_project(
            project, settings=run.settings, options=options, progress=run.start_progress(progress)
        )
        run.stop_progress()
    write_export(path, export)
    run.terminal.info(f"wrote {path.relative_to(project.directory)}")
    for text in export.skipped:
        print_warning(f"not written: {strip_control_sequences(text)}", run.terminal)
