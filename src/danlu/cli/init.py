"""``danlu init``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import command as declare_command
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.convert import init, init_from_template
from danlu.convert.template import list_templates
from danlu.errors import DifferenceFound
from danlu.util.sanitize import strip_control_sequences
from danlu.util.urls import mask_credentials

_MAX_LISTED_NAMES = 8


@declare_command("init")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Convert FILE [default: detect what the directory contains].",
)
@click.option(
    "--template",
    metavar="NAME|DIRECTORY|URL",
    shell_complete=lambda context, parameter, incomplete: [
        CompletionItem(name, help=summary)
        for name, summary in list_templates().items()
        if name.startswith(incomplete)
    ],
    help="Start from a template of danlu, or from your team's.",
)
@click.option("--python", is_flag=True, help="Write build.py instead of build.envd.")
@click.option("--force", is_flag=True, help="Overwrite an existing build file.")
@verbosity_options
def command(source: Path | None, template: str | None, python: bool, force: bool) -> None:
    """Generate a build file for this project.

    Reads requirements.txt, pyproject.toml, environment.yml, a Dockerfile or a notebook;
    without any of them, the imports of the project's programs. With --from also a
    devcontainer.json, or the directory .devcontainer. Nothing is installed or downloaded.
    If something of a Dockerfile or devcontainer.json is not carried over, the build file lists it,
    and the exit code is 1.

    Templates: codex, conda, distributed-training, llm-finetuning, pixi, r-python, serving, torch,
    uv and vision. A team's own is a directory, or a git repository as URL#REF:PATH. Its files are
    copied next to yours: none of yours is overwritten, none of its is executed.
    """
    run = current_session()
    terminal = run.terminal
    if template is not None:
        if source or python:
            raise click.UsageError("--template cannot be combined with --from or --python")
        report = init_from_template(run.directory, template, force=force, cache=run.paths.cache)
    else:
        report = init(run.directory, source=source, python=python, force=force)
    written = [report.path.name, *(name for name in report.files if name != report.path.name)]
    terminal.info(f"wrote {_list_names(written)} from {report.source}")
    if report.guessed:
        terminal.info(f"guessed from imports, please check: {_list_names(list(report.guessed))}")
    for note in report.notes:
        print_warning(mask_credentials(note), terminal)
    terminal.info("")
    for line in report.text.rstrip("\n").splitlines():
        # A template of a repository may contain anything.
        shown = mask_credentials(strip_control_sequences(line))
        terminal.info(terminal.style(f"    {shown}".rstrip(), "dim"))
    terminal.info("")
    program = _format_program(report.program)
    terminal.info(
        "Next: `danlu lock` chooses versions and says how much will be downloaded;\n"
        f"      `danlu run -- {program}` does that, builds and runs"
    )
    if report.omitted:
        raise DifferenceFound(
            f"{report.path.name} does not do everything that {report.source} says",
            hint="the comment at its end lists what is missing, with lines and reasons",
        )


def _list_names(names: Sequence[str]) -> str:
    hidden = len(names) - _MAX_LISTED_NAMES
    more = f" and {hidden} more" if hidden > 0 else ""
    return f"{', '.join(names[:_MAX_LISTED_NAMES])}{more}"


def _format_program(program: str) -> str:
    if program.endswith(".ipynb"):
        return f"jupyter execute {program}"
    return f"python {program}" if program else "python"
