"""The lines of a program's output, as it arrives."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from io import IncrementalNewlineDecoder

_MAX_LINE_LENGTH = 65536


class OutputLines:
    """Calls ``on_line`` with each line of the output that it is fed.

    A carriage return ends a line too (progress bars). Undecodable bytes are replaced, and longer
    lines than 64 Ki characters are split.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The rest of "\r\n" may arrive with the next chunk.
        self._decoder = IncrementalNewlineDecoder(decoder, translate=True)
        self._pending = ""

    def feed(self, chunk: bytes, *, final: bool = False) -> None:
        """Take the next output; with ``final`` it was the last, which also ends the last line."""
        text = self._pending + self._decoder.decode(chunk, final)
        *lines, self._pending = text.split("\n")
        if self._pending and (final or len(self._pending) > _MAX_LINE_LENGTH):
            lines.append(self._pending)
            self._pending = ""
        for line in lines:
            self._on_line(line)
