"""``danlu init``."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session

__all__ = ["command"]

_SHOWN = 8


@click.command(name="init", short_help="Write a build file for what this directory holds.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Make it from requirements.txt, pyproject.toml, environment.yml, a Dockerfile or a "
    "notebook (default: what the directory holds, else the imports of its programs).",
)
@click.option("--python", is_flag=True, help="Write build.py instead of build.envd.")
@click.option("--force", is_flag=True, help="Replace the build file that is there.")
@verbosity_options
def command(source: Path | None, python: bool, force: bool) -> None:
    """Write a build file for what this directory holds.

    Nothing is installed or fetched; `danlu build` does that.
    """
    from danlu.cli.messages import warn
    from danlu.commands.init import init

    run = session()
    terminal = run.terminal
    report = init(run.directory, source=source, python=python, force=force)
    terminal.say(f"wrote {report.path.name} from {report.source}")
    if report.guessed:
        names = list(report.guessed)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        terminal.say(f"guessed from imports: {', '.join(names[:_SHOWN])}{more}; check these names")
    for note in report.notes:
        warn(note, terminal)
    terminal.say("")
    for line in report.text.rstrip("\n").splitlines():
        terminal.say(terminal.style(f"    {line}".rstrip(), "dim"))
    terminal.say("")
    program = _example(report.program)
    terminal.say(f"next: `danlu plan` shows it, `danlu run -- {program}` builds it and runs in it")


def _example(program: str) -> str:
    if program.endswith(".ipynb"):
        return f"jupyter execute {program}"
    return f"python {program}" if program else "python"
