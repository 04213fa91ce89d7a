"""``docs/reference/cli.md``, made from the commands themselves: ``python -m danlu.cli.reference``.

A test compares the file with what this gives.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from danlu.cli.app import root
from danlu.cli.lazy import LazyGroup
from danlu.util.pages import write_pages

__all__ = ["PATH", "reference"]

#: Where the page lies in the repository.
PATH = Path("docs/reference/cli.md")

#: Options of every command: said once.
_EVERYWHERE = {"verbose", "quiet"}

_START = """# The command line

Made from the program by `python -m danlu.cli.reference`; do not edit.

Data goes to stdout, everything else to stderr. Exit codes: 0 done; 1 the user's build step failed,
or a check found a difference; 2 wrong usage, build file, unsatisfiable packages, or a stale lock
under `--frozen`; 3 something outside failed, or the store is damaged; 4 this machine lacks
something; 130 interrupted, 143 terminated. `danlu run` gives the program's own code, 128+n where
signal n ended it, 126 and 127 as shells do, and 125 where danlu failed before the program started.

`--progress json` writes one event a line to stderr: `type` (`started`, `finished`, `log`,
`transfer`, `message`), `vertex`, `name`, `branch`, `time` (seconds), and what the type adds; the
last line is of type `built` or `error`. `NO_COLOR` and `TERM=dumb` are honoured. Each run writes a
log below the state directory (`danlu config paths.logs`); the last 50 are kept.
"""


def reference() -> str:
    """The page."""
    parts = [_START]
    with click.Context(root, info_name="danlu") as context:
        parts += ["## danlu\n", "Every command takes `--verbose` and `--quiet`, too.\n"]
        parts += _options(root, context)
        for section in root.sections:
            for entry in root.entries:
                if entry.section == section:
                    parts += _command(root, context, entry.name, depth=2)
    return "\n".join(parts).rstrip() + "\n"


def _command(group: LazyGroup, parent: click.Context, name: str, *, depth: int) -> Iterator[str]:
    command = group.get_command(parent, name)
    assert command is not None
    with click.Context(command, info_name=name, parent=parent) as context:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"{'#' * depth} {context.command_path}\n"
        yield f"```\n{context.command_path} {usage}\n```\n"
        yield _help(command)
        yield from _options(command, context)
        if isinstance(command, LazyGroup):
            for entry in command.entries:
                yield from _command(command, context, entry.name, depth=depth + 1)


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    # A paragraph that begins with a backspace keeps its lines (click's convention).
    text = re.sub(r"\x08\n((?:.+\n?)+)", lambda match: f"```\n{match[1].rstrip()}\n```", text)
    return text + "\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    shown = [one for one in command.params if isinstance(one, click.Option)]
    if context.parent is not None:
        shown = [one for one in shown if one.name not in _EVERYWHERE]
    rows = [row for row in (_row(one, context) for one in shown) if row]
    if rows:
        yield "| option | |\n|---|---|"
        yield "\n".join(rows) + "\n"


def _row(parameter: click.Parameter, context: click.Context) -> str:
    record: Any = parameter.get_help_record(context)
    if record is None:
        return ""
    names, text = (str(one).replace("|", "\\|") for one in record)
    return f"| `{names}` | {text} |"


if __name__ == "__main__":
    sys.exit(write_pages({str(PATH): reference()}, sys.argv[1:]))
