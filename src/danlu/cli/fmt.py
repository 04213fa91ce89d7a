"""``danlu fmt``."""

from __future__ import annotations

import sys

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.errors import DifferenceFound
from danlu.project.fmt import format_files, format_text, list_build_files


@declare_command("fmt")
@click.argument("paths", nargs=-1, metavar="[PATH]…", type=click.Path())
@click.option("--check", is_flag=True, help="Don't write anything; exit 1 if a file would change.")
@verbosity_options
def command(paths: tuple[str, ...], check: bool) -> None:
    """Format build files.

    PATH is a file or a directory; the default is the current directory. With - a build file is read
    from stdin and written to stdout. Settings for ruff in pyproject.toml apply.
    """
    run = current_session()
    if "-" in paths:
        if len(paths) > 1:
            raise click.UsageError("- cannot be combined with other files")
        _format_stdin(check=check)
        return
    report = format_files(list_build_files(paths, run.directory), run.directory, check=check)
    for name in report.changed:
        run.terminal.info(f"{'would format' if check else 'formatted'} {name}")
    if check and report.changed:
        raise DifferenceFound(
            f"{len(report.changed)} of {report.total} build files are not formatted",
            hint="run `danlu fmt`",
        )
    if not report.changed:
        run.terminal.info("already formatted")


def _format_stdin(*, check: bool) -> None:
    text = sys.stdin.buffer.read()
    formatted = format_text(text, "build.envd", directory=current_session().directory)
    if not check:
        sys.stdout.buffer.write(formatted)
        sys.stdout.buffer.flush()
    elif formatted != text:
        raise DifferenceFound("stdin is not formatted")
