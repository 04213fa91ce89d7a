"""Errors and warnings on stderr: message, source line with carets, details, hint."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from danlu.cli.terminal import Terminal, text_width
from danlu.errors import DanluError, ResolveError, UsageError
from danlu.util.safe_paths import ProjectTree
from danlu.util.sanitize import strip_control_sequences
from danlu.util.urls import mask_credentials, mask_values


def print_error(error: DanluError, terminal: Terminal, *, directory: Path | None = None) -> None:
    """Print an error for people.

    If the error has a span but no source line, the line is read from the file in ``directory``.
    """
    if directory is not None and error.span is not None and not error.source_line:
        error.source_line = _read_source_line(directory, error.span.file, error.span.line)
    for line in format_error(error, terminal):
        terminal.write_stderr(line)


def print_error_event(error: DanluError, terminal: Terminal) -> None:
    """Print an error as the JSON event that ends a run under ``--progress json``."""
    fields: dict[str, object] = {"type": "error", "message": error.message}
    if error.span is not None and error.span.file:
        fields |= {"file": error.span.file, "line": error.span.line, "column": error.span.column}
    if error.details:
        fields["details"] = list(error.details)
    if error.hint:
        fields["hint"] = error.hint
    terminal.write_stderr(json.dumps(mask_values(fields | {"exit_code": error.exit_code})))


def print_warning(text: str, terminal: Terminal) -> None:
    """Print a warning in one line."""
    label = terminal.style("warning:", "yellow", "bold")
    terminal.info(f"{label} {strip_control_sequences(mask_credentials(text))}")


def format_error(error: DanluError, terminal: Terminal) -> Iterator[str]:
    """Yield the lines of an error.

    ``splitlines`` is not used: it also splits at form feeds and other characters that messages of
    programs contain.
    """
    first, *rest = mask_credentials(error.message).rstrip("\n").split("\n")
    label = terminal.style("error:", "red", "bold")
    yield f"{label} {terminal.style(strip_control_sequences(first), 'bold')}"
    yield from (f"  {strip_control_sequences(line)}" for line in rest)
    if error.span is not None and error.span.file:
        span = strip_control_sequences(mask_credentials(str(error.span)))
        yield f"  {terminal.style('-->', 'blue')} {span}"
        yield from _format_source(error, terminal)
    for detail in error.details:
        for line in mask_credentials(detail).rstrip("\n").split("\n"):
            text = f"  {strip_control_sequences(line)}".rstrip()
            # A resolver writes sentences; other details are lines of a program's output.
            yield from (
                _wrap_line(text, terminal.width) if isinstance(error, ResolveError) else (text,)
            )
    if error.hint:
        label = terminal.style("hint:", "cyan", "bold")
        head, *tail = mask_credentials(error.hint).splitlines()
        yield f"{label} {strip_control_sequences(head)}"
        yield from (f"      {strip_control_sequences(line)}" for line in tail)


def _wrap_line(line: str, width: int) -> list[str]:
    """Return ``line`` in lines of at most ``width`` columns, cut at spaces only."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [line]


def _read_source_line(directory: Path, file: str, number: int) -> str:
    """Return a line of a project's file, or ``""`` if it cannot be read or is outside."""
    try:
        with ProjectTree(directory) as tree:
            lines = tree.read_text(file).splitlines()
    except (OSError, ValueError, UsageError):
        return ""
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _format_source(error: DanluError, terminal: Terminal) -> Iterator[str]:
    """Yield the source line and the carets below it, cut to what fits around the carets."""
    span = error.span
    if span is None or not error.source_line.strip():
        return
    raw = error.source_line.rstrip("\n").expandtabs(1)
    line = strip_control_sequences(mask_credentials(raw))
    number = str(span.line)
    gutter = " " * len(number)
    room = max(20, terminal.width - len(number) - 6)
    # The span counts columns of the file; masked credentials before it change the length.
    start = len(strip_control_sequences(mask_credentials(raw[: max(0, span.column - 1)])))
    end = len(strip_control_sequences(mask_credentials(raw[: max(0, span.end_column - 1)])))
    end = min(max(end, start + 1), max(len(line), start + 1))
    left = max(0, start - room // 2) if len(line) > room else 0
    text = line[left : left + room]
    bar = terminal.style("|", "blue")
    yield f"   {gutter} {bar}"
    yield f"   {terminal.style(number, 'blue')} {bar} {text}"
    if span.column:
        before = text_width(line[left:start])
        width = max(1, text_width(line[start : min(end, left + room)]))
        carets = terminal.style("^" * width, "red", "bold")
        yield f"   {gutter} {bar} {' ' * before}{carets}"
