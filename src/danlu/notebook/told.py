"""What IPython shows of our errors: what they say, and not the lines of this program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from danlu.errors import DanluError

__all__ = ["plainly", "rendered"]

_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


@contextmanager
def plainly() -> Iterator[None]:
    """Let what is raised be shown without a traceback through danlu.

    IPython asks an exception for ``_render_traceback_`` before it makes its own.
    """
    try:
        yield
    except DanluError as error:
        _render(error, rendered(error))
        raise
    except KeyboardInterrupt as error:
        _render(error, [f"{_RED}KeyboardInterrupt{_PLAIN}"])
        raise


def rendered(error: DanluError) -> list[str]:
    """The lines that tell of an error: message, place, details, hint."""
    lines = [f"{_RED}{type(error).__name__}{_PLAIN}: {error.message}"]
    if error.source_line:
        lines += ["", f"    {error.source_line.strip()}"]
    if error.details:
        lines += ["", *error.details]
    if error.hint:
        lines += ["", *(f"hint: {line}" for line in error.hint.splitlines())]
    return lines


def _render(error: BaseException, lines: list[str]) -> None:
    if not hasattr(error, "_render_traceback_"):
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
