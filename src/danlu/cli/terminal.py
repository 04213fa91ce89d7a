"""The standard streams: results on stdout, messages on stderr, and what each can display."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from danlu.errors import OutsideError

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


#: Columns that stay free at the right of what is redrawn: the cursor's, and two for the ``^C`` that
#: a terminal echoes, which would otherwise wrap, so that one row too few is removed.
DRAWING_MARGIN = 3


class OutputClosed(Exception):
    """The reader of stdout has exited (``danlu image ls | head``), which is not an error."""


def text_width(text: str) -> int:
    """Return the terminal columns of ``text``: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import unicodedata  # 1 MB of tables, and most text is ASCII

    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


class Terminal:
    """Writes to stdout and stderr.

    ``interactive`` says that stderr is a terminal that can move its cursor, ``color`` that it may
    be coloured (https://no-color.org), ``unicode`` that it can show more than ASCII; names that
    begin with ``out_`` say the same about stdout.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        # Python sets these to None if the process was started with the descriptor closed.
        self.out: TextIO | None = sys.stdout if out is None else out
        self.err: TextIO | None = sys.stderr if err is None else err
        dumb = env.get("TERM", "") in ("", "dumb")
        self.interactive = _is_terminal(self.err) and not dumb
        self.color = self.interactive and not env.get("NO_COLOR")
        self.out_is_terminal = _is_terminal(self.out)
        self.out_color = self.out_is_terminal and not dumb and not env.get("NO_COLOR")
        self.unicode = _is_unicode(self.err)
        self.out_unicode = _is_unicode(self.out)
        self.quiet = False
        #: Set while stderr carries JSON events: :meth:`info` then writes nothing.
        self.muted = False
        #: Set while something is drawn at the bottom of the terminal: writes a line above it.
        self.write_above: Callable[[str], None] | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 if stdout is none."""
        return max(20, shutil.get_terminal_size().columns)

    @property
    def can_attach(self) -> bool:
        """Whether a program gets our terminal: otherwise it would write past redirected streams."""
        return _is_terminal(sys.stdin) and self.out_is_terminal and _is_terminal(self.err)

    def write_stdout(self, text: str) -> None:
        """Write one or several lines of the command's result to stdout."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        try:
            # Names of files need not be UTF-8 (PEP 383); their bytes are printed unchanged.
            data = (text + "\n").encode(encoding, errors="surrogateescape")
        except UnicodeEncodeError:
            data = (text + "\n").encode(encoding, errors="backslashreplace")
        self.write_stdout_bytes(data)

    def write_stdout_bytes(self, data: bytes) -> None:
        """Write bytes of the command's result to stdout."""
        if self.out is None:
            return
        try:
            binary = getattr(self.out, "buffer", None)
            if binary is None:
                self.out.write(data.decode(errors="replace"))
            else:
                self.out.flush()
                binary.write(data)
            self.out.flush()
        except BrokenPipeError as error:
            self._discard_stdout()
            raise OutputClosed from error
        except OSError as error:
            self._discard_stdout()
            raise OutsideError(f"cannot write to stdout: {error.strerror}") from error

    def info(self, text: str) -> None:
        """Write a message to stderr, unless ``-q`` was given or stderr carries JSON."""
        if not (self.quiet or self.muted):
            self.write_stderr(text)

    def write_stderr(self, text: str) -> None:
        """Write a line to stderr, even with ``-q``: errors and JSON events."""
        write_above = self.write_above
        if write_above is not None:
            write_above(text)
            return
        if self.err is None:
            return
        encoding = getattr(self.err, "encoding", None) or "utf-8"
        line = text.encode(encoding, errors="backslashreplace").decode(encoding)
        try:
            self.err.write(line + "\n")
            self.err.flush()
        except (OSError, ValueError):
            self.err = None  # a build does not fail because nobody reads its messages

    def style(self, text: str, *names: str) -> str:
        """Style ``text`` for stderr, if it may be coloured."""
        return _apply_style(text, names) if self.color and names else text

    def style_stdout(self, text: str, *names: str) -> str:
        """Style ``text`` for stdout, if it may be coloured."""
        return _apply_style(text, names) if self.out_color and names else text

    def _discard_stdout(self) -> None:
        # The interpreter flushes stdout when it exits, and would report the error again.
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 1)
        finally:
            os.close(null)
        self.out = None


def _apply_style(text: str, names: tuple[str, ...]) -> str:
    codes = ";".join(_STYLES[name] for name in names)
    return f"\x1b[{codes}m{text}\x1b[0m"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _is_unicode(stream: TextIO | None) -> bool:
    encoding = (getattr(stream, "encoding", "") or "").lower().replace("-", "")
    return encoding.startswith("utf")
