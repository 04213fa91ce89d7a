"""Render ``docs/reference/cli.md`` from the commands: ``scripts/reference/cli.py [--check]``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from danlu.cli.app import COMMANDS, root
from danlu.cli.groups import SectionedGroup
from scripts.reference.pages import write_pages

PATH = Path("docs/reference/cli.md")

#: Every command has these options: they are documented once.
GLOBAL_OPTIONS = {"verbose", "quiet"}

INTRODUCTION = """# The command line

Generated from the program by `make docs`; do not edit.

Results are written to stdout, everything else to stderr. Exit codes: 0 success; 1 a build step or
a job failed, or a check found a difference; 2 wrong usage, an invalid build file, unsatisfiable
packages, or an outdated lockfile under `--frozen`; 3 an external failure, or a damaged store;
4 this machine lacks something; 130 interrupted, 143 terminated. `danlu run` exits with the
command's own code: 128+n if signal n killed it, 126 and 127 as in a shell, and 125 if danlu failed
before the command started.

`--progress json` writes one event a line to stderr: `type` (`started`, `finished`, `log`,
`transfer`, `message`), `vertex`, `name`, `branch`, `time` (seconds) and the fields of the type; the
last line has the type `built` or `error`. `NO_COLOR` and `TERM=dumb` are respected. Each run writes
a log to the directory `danlu config paths.logs`; the last 50 are kept.
"""


def render_reference() -> str:
    """Render the page."""
    parts = [INTRODUCTION]
    with click.Context(root, info_name="danlu") as context:
        parts += ["## danlu\n", "Every command also accepts `--verbose` and `--quiet`.\n"]
        parts += render_options(root, context)
        parts.append(render_overview())
        for name in root.list_commands(context):
            parts += render_command(root, context, name, depth=2)
    return "\n".join(parts).rstrip() + "\n"


def render_overview() -> str:
    """Render a table of all commands, by the sections of ``danlu --help``."""
    lines = ["| command | |", "|---|---|"]
    for section, specs in groupby(COMMANDS, lambda spec: spec.section):
        lines.append(f"| **{section}** | |")
        lines += [
            f"| [`danlu {spec.name}`](#danlu-{spec.name}) | {spec.summary} |" for spec in specs
        ]
    return "\n".join([*lines, ""])


def render_command(
    group: SectionedGroup, parent: click.Context, name: str, *, depth: int
) -> Iterator[str]:
    command = group.get_command(parent, name)
    assert command is not None
    with click.Context(command, info_name=name, parent=parent) as context:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"{'#' * depth} {context.command_path}\n"
        yield f"```\n{context.command_path} {usage}\n```\n"
        yield render_help(command)
        yield from render_options(command, context)
        if isinstance(command, SectionedGroup):
            for subcommand in command.list_commands(context):
                yield from render_command(command, context, subcommand, depth=depth + 1)


def render_help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    # A paragraph that begins with a backspace keeps its lines (click's convention).
    text = re.sub(r"\x08\n((?:.+\n?)+)", lambda match: f"```\n{match[1].rstrip()}\n```", text)
    return text + "\n"


def render_options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option)
        and (context.parent is None or option.name not in GLOBAL_OPTIONS)
    ]
    rows = [row for row in (render_option(option, context) for option in options) if row]
    if rows:
        yield "| option | |\n|---|---|"
        yield "\n".join(rows) + "\n"


def render_option(option: click.Option, context: click.Context) -> str:
    record: Any = option.get_help_record(context)
    if record is None:
        return ""
    names, text = (str(part).replace("|", "\\|") for part in record)
    text = text.replace("[", "\\[")  # `[default: …]` is not a link
    return f"| `{names}` | {text} |"


if __name__ == "__main__":
    sys.exit(write_pages({str(PATH): render_reference()}, sys.argv[1:]))
