"""``danlu build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from danlu.cli.options import file_option, format_option, progress_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.values import parse_secrets, parse_ssh

if TYPE_CHECKING:
    from danlu.commands.build import BuildOptions

__all__ = ["command"]


@click.command(name="build", short_help="Build the image.")
@file_option
@click.option(
    "-t", "--tag", "tags", multiple=True, metavar="REF", help="Name the image so. Repeatable."
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="type=TYPE,dest=PATH",
    help="Also write it: type=oci or dir (an OCI layout), type=docker (a file). Repeatable.",
)
@click.option("--push", is_flag=True, help="Push it to the registries of its tags.")
@click.option(
    "--builder",
    metavar="BUILDER",
    default="",
    help="Who builds: embedded, or buildkit[://ADDR] (default: the configuration's).",
)
@click.option("--platform", metavar="OS/ARCH", default="", help="Default: this machine's.")
@click.option("--frozen", is_flag=True, help="Never resolve: a stale or missing lock is an error.")
@click.option("--offline", is_flag=True, help="Use only what this machine already has.")
@click.option("--no-cache", is_flag=True, help="Run every step again.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="id=ID,src=PATH",
    help="A file that steps may read as a secret. `env=NAME` instead of src takes a variable.",
)
@click.option(
    "--ssh",
    is_flag=False,
    flag_value="default",
    metavar="[default[=SOCKET]]",
    help="Let steps with ssh=True use your ssh agent, or the one at SOCKET.",
)
@click.option("--debug", is_flag=True, help="Where a step fails, open a shell in its place.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip", "none"]),
    help="How layers are compressed (default: zstd when written, gzip when pushed).",
)
@click.option(
    "--metadata-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write what was built as JSON.",
)
@format_option()
@progress_option
@verbosity_options
def command(
    file: str | None,
    secrets: tuple[str, ...],
    form: str,
    progress: str,
    tags: tuple[str, ...],
    outputs: tuple[str, ...],
    push: bool,
    builder: str,
    platform: str,
    frozen: bool,
    offline: bool,
    no_cache: bool,
    ssh: str | None,
    debug: bool,
    compression: str | None,
    metadata_file: Path | None,
) -> None:
    """Build the image.

    What is not locked is locked first, what was built before is not built again. With -q only the
    image's digest is written to stdout; with --format json all of --metadata-file.
    """
    from danlu.commands.build import BuildOptions
    from danlu.commands.images import normal_name

    _refuse_impossible(tags, outputs, push=push)
    with parse_secrets(secrets) as files:
        options = BuildOptions(
            tags=tuple(normal_name(one) for one in tags),
            outputs=outputs,
            push=push,
            builder=builder,
            platform=platform,
            frozen=frozen,
            offline=offline,
            no_cache=no_cache,
            secrets=files,
            ssh=parse_ssh(ssh) if ssh is not None else None,
            debug=debug,
            metadata_file=metadata_file,
            compression=compression or "",
        )
        _build(file, options, form=form, progress=progress)


def _refuse_impossible(tags: tuple[str, ...], outputs: tuple[str, ...], *, push: bool) -> None:
    """Say before a long build what would only be found at its end."""
    if push and not tags:
        raise click.UsageError("--push needs a name: give one with -t REGISTRY/NAME:TAG")
    if outputs:
        from danlu.commands.export import parse_output

        for text in outputs:
            parse_output(text)


def _build(file: str | None, options: BuildOptions, *, form: str, progress: str) -> None:
    from danlu.cli.summary import build_summary
    from danlu.commands.build import build

    run = session()
    project = run.project(file)
    report = build(project, settings=run.settings, options=options, progress=run.watch(progress))
    run.stop_progress()
    if form == "json":
        from danlu.cli.output import print_json
        from danlu.commands.buildreport import metadata

        print_json(metadata(report), run.terminal)
    elif run.quiet:
        run.terminal.data(report.config)
    build_summary(report, run)
