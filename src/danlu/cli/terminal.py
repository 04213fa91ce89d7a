"""The two streams: data on stdout, talk on stderr, and what each of them can show."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from danlu.errors import OutsideError
from danlu.util.plaintext import clean

__all__ = ["OutputClosed", "Terminal", "clean", "columns"]

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


class OutputClosed(Exception):
    """Whoever read our stdout has gone (``danlu image ls | head``): not a failure of ours."""


def columns(text: str) -> int:
    """Terminal columns that ``text`` takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


class Terminal:
    """Where a run's words go.

    ``interactive``: talk goes to a terminal that can move its cursor. ``color``: it may be
    coloured (https://no-color.org). ``unicode``: it shows more than ASCII. What begins with
    ``out_`` is the same of stdout.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        # Both are None where the process was started with the descriptor closed.
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
        #: Set where stderr is for machines: then only what insists is written.
        self.mute = False
        #: Set while something is drawn at the bottom of the terminal: puts a line above it.
        self.above: Callable[[str], None] | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 where there is none."""
        return max(20, shutil.get_terminal_size().columns)

    def data(self, text: str) -> None:
        """Write one line (or several) of the command's result to stdout."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        try:
            data = (text + "\n").encode(encoding, errors="surrogateescape")
        except UnicodeEncodeError:
            data = (text + "\n").encode(encoding, errors="backslashreplace")
        self.data_bytes(data)

    def data_bytes(self, data: bytes) -> None:
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
            self._abandon_out()
            raise OutputClosed from error
        except OSError as error:
            self._abandon_out()
            raise OutsideError(f"cannot write to stdout: {error.strerror}") from error

    def say(self, text: str) -> None:
        """Write one line of talk to stderr, unless the run is to be quiet."""
        if not (self.quiet or self.mute):
            self.insist(text)

    def insist(self, text: str) -> None:
        """Write one line of talk to stderr, also in a quiet run: errors."""
        above = self.above
        if above is not None:
            above(text)
            return
        if self.err is None:
            return
        encoding = getattr(self.err, "encoding", None) or "utf-8"
        line = text.encode(encoding, errors="backslashreplace").decode(encoding)
        try:
            self.err.write(line + "\n")
            self.err.flush()
        except (OSError, ValueError):
            self.err = None  # nobody listens: a build goes on without words

    def style(self, text: str, *names: str) -> str:
        """``text`` for stderr in these styles, or as it is where there are no colours."""
        return _styled(text, names) if self.color and names else text

    def out_style(self, text: str, *names: str) -> str:
        """``text`` for stdout in these styles, or as it is where there are no colours."""
        return _styled(text, names) if self.out_color and names else text

    def _abandon_out(self) -> None:
        # The interpreter flushes stdout at its end, and would complain there.
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 1)
        finally:
            os.close(null)
        self.out = None


def _styled(text: str, names: tuple[str, ...]) -> str:
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
