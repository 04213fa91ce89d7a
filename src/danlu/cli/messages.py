"""How errors look: message, place, source line with a caret, details, hint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from danlu.cli.terminal import Terminal, clean, columns
from danlu.errors import DanluError

__all__ = ["as_fields", "render", "warn"]


def render(error: DanluError, terminal: Terminal, *, directory: Path | None = None) -> None:
    """Write ``error`` to stderr as a person reads it.

    ``directory`` is where the file it names lies, if it does not bring the line itself.
    """
    if directory is not None and error.span is not None and not error.source_line:
        error.source_line = _line_of(directory / error.span.file, error.span.line)
    for line in error_lines(error, terminal):
        terminal.insist(line)


def warn(text: str, terminal: Terminal) -> None:
    """Write one warning to stderr."""
    terminal.say(f"{terminal.style('warning:', 'yellow', 'bold')} {clean(text)}")


def error_lines(error: DanluError, terminal: Terminal) -> Iterator[str]:
    """The lines :func:`render` writes."""
    first, *rest = _split(error.message)
    yield f"{terminal.style('error:', 'red', 'bold')} {terminal.style(clean(first), 'bold')}"
    yield from (f"  {clean(line)}" for line in rest)
    if error.span is not None and error.span.file:
        yield f"  {terminal.style('-->', 'blue')} {clean(str(error.span))}"
        yield from _source(error, terminal)
    yield from (f"  {clean(line)}".rstrip() for detail in error.details for line in _split(detail))
    if error.hint:
        label = terminal.style("hint:", "cyan", "bold")
        head, *tail = error.hint.splitlines()
        yield f"{label} {clean(head)}"
        yield from (f"      {clean(line)}" for line in tail)


def as_fields(error: DanluError) -> dict[str, object]:
    """``error`` as the JSON event that ends a run under ``--progress json``."""
    fields: dict[str, object] = {"type": "error", "message": error.message}
    if error.span is not None and error.span.file:
        fields |= {"file": error.span.file, "line": error.span.line, "column": error.span.column}
    if error.details:
        fields["details"] = list(error.details)
    if error.hint:
        fields["hint"] = error.hint
    return fields | {"exit_code": error.exit_code}


def _line_of(path: Path, number: int) -> str:
    """A line of a file, empty where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _split(detail: str) -> list[str]:
    return detail.rstrip("\n").split("\n")  # not splitlines, which splits at more than lines


def _source(error: DanluError, terminal: Terminal) -> Iterator[str]:
    """The source line and the caret line below it, cut to what fits around the caret."""
    span = error.span
    if span is None or not error.source_line.strip():
        return
    line = clean(error.source_line.rstrip("\n").expandtabs(1))
    number = str(span.line)
    gutter = " " * len(number)
    room = max(20, terminal.width - len(number) - 6)
    start = max(0, span.column - 1)
    end = min(max(span.end_column - 1, start + 1), max(len(line), start + 1))
    left = max(0, start - room // 2) if len(line) > room else 0
    text = line[left : left + room]
    bar = terminal.style("|", "blue")
    yield f"   {gutter} {bar}"
    yield f"   {terminal.style(number, 'blue')} {bar} {text}"
    if span.column:
        before = columns(line[left:start])
        under = max(1, columns(line[start : min(end, left + room)]))
        carets = terminal.style("^" * under, "red", "bold")
        yield f"   {gutter} {bar} {' ' * before}{carets}"
